"""Vector norms of segments: each body against PyTorch on each segment, derivatives of two orders."""

from __future__ import annotations

import math

import pytest
import torch

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.segment_cases import (
    FLOATS,
    LENGTHS,
    close,
    expected,
    gradients_agree,
    orders,
    pointers_of,
)

ORDERS = [0.0, 1.0, 2.0, 3.0, 1.5, 0.5, -1.0, math.inf, -math.inf]


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def _body(request):
    with use_kernels(request.param):
        yield


def norm(ord):
    return lambda part: torch.linalg.vector_norm(part, ord, 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ord", ORDERS)
def test_norm_and_gradient(dtype, ord):
    for lengths, dense in zip(LENGTHS, [(3,), (), (2, 2), (), ()], strict=True):
        pointers = pointers_of(lengths)
        values = (torch.randn(sum(lengths), *dense) * 3).to(dtype)
        values[:1] = 0
        for order in orders(len(values)):
            if ord == 0:
                found = kernels.segment_norm(values, pointers, order, ord)
                close(found, expected(norm(0), 0, values.double(), pointers, order), torch.float32)
                continue
            gradients_agree(
                lambda v, o=order, p=pointers: kernels.segment_norm(v, p, o, ord),
                lambda v, o=order, p=pointers: expected(norm(ord), 0, v, p, o),
                values,
            )


@pytest.mark.parametrize("length", [4, 80])
@pytest.mark.parametrize("ord", [0.0, 1.0, 2.0, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_segment(length, ord):
    values = torch.randn(6 * length)
    for segment, strange in enumerate([math.nan, math.inf, -math.inf, 1e38]):
        values[segment * length + 2] = strange
    values[4 * length : 5 * length] = 0
    pointers = pointers_of([length] * 6)
    rows = torch.stack([values, values.flip(0)], -1)
    shuffled = torch.cat([torch.randperm(length) + k * length for k in range(6)])
    for x, order in ((values, None), (values, shuffled), (rows, None), (rows, shuffled)):
        ours, theirs = (v.clone().requires_grad_() for v in (x, x.double()))
        found, wanted = (
            kernels.segment_norm(ours, pointers, order, ord),
            expected(norm(ord), 0, theirs, pointers, order),
        )
        close(found, wanted, torch.float32)
        if ord:
            slopes = [torch.autograd.grad(y.sum(), x)[0] for y, x in ((found, ours), (wanted, theirs))]
            close(*slopes, torch.float32)


def test_ties_share_the_gradient():
    values = torch.tensor([2.0, -2.0, 1.0, 0.0, 0.0, 3.0], requires_grad=True)
    kernels.segment_norm(values, pointers_of([3, 3]), None, math.inf).sum().backward()
    assert values.grad.tolist() == [0.5, -0.5, 0, 0, 0, 1]
    values.grad = None
    kernels.segment_norm(values, pointers_of([3, 3]), None, -math.inf).sum().backward()
    assert values.grad.tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, -1.0, math.inf])
def test_first_and_second_derivatives(ord):
    pointers = pointers_of([3, 0, 2])
    for order, dense in zip(orders(5), [(), (2,)], strict=True):
        values = torch.randn(5, *dense, dtype=torch.float64, requires_grad=True)

        def f(v, order=order):
            return kernels.segment_norm(v, pointers, order, ord)

        assert torch.autograd.gradcheck(f, values, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, values, fast_mode=True)


def test_the_second_derivative_at_a_zero_of_a_vector():
    """That of the Euclidean norm is 1 / norm there, not 0."""
    values = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True)

    def f(v):
        return kernels.segment_norm(v, pointers_of([3]), None, 2.0)

    (slope,) = torch.autograd.grad(f(values), values, create_graph=True)
    (bend,) = torch.autograd.grad(slope[1], values)
    torch.testing.assert_close(bend, torch.tensor([0, 0.2, 0], dtype=torch.float64))


def test_transforms_and_complex_numbers():
    pointers, order = pointers_of([3, 1, 4]), torch.randperm(8)
    rows = torch.randn(2, 8)
    for ord in (2.0, math.inf):

        def f(row, ord=ord):
            return kernels.segment_norm(row, pointers, order, ord)

        torch.testing.assert_close(torch.vmap(f)(rows), torch.stack([f(row) for row in rows]))
        leaf = rows[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
        torch.testing.assert_close(torch.func.grad(lambda v, f=f: f(v).sum())(rows[0]), slope)
    for ord in (1.0, 2.0, 3.0, math.inf):
        ours, theirs = (torch.arange(8) * (1 - 2j)).requires_grad_(), None
        theirs = ours.detach().clone().requires_grad_()
        kernels.segment_norm(ours, pointers, order, ord).sum().backward()
        expected(norm(ord), 0, theirs, pointers, order).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("_body", ["cpu"], indirect=True)
def test_many_threads_find_what_one_finds():
    index, values = torch.randint(700, (500_003,)), torch.randn(500_003)
    pointers, order, _ = cpu.sort_rows(index, 700)
    for ord in (2.0, math.inf):
        found = cpu.segment_norm(values, pointers, order, ord)
        torch.testing.assert_close(found, reference.segment_norm(values, pointers, order, ord))
