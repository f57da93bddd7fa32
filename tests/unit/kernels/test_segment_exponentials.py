"""Logarithms of sums of exponentials of segments: each body against PyTorch on each segment, two derivatives."""

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


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def _body(request):
    with use_kernels(request.param):
        yield


def formula(part):
    return torch.logsumexp(part, 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dense", [(), (3,), (2, 2)])
def test_logsumexp_and_gradient(dtype, dense):
    for lengths in LENGTHS:
        pointers = pointers_of(lengths)
        values = (torch.randn(sum(lengths), *dense) * 9).to(dtype)
        for order in orders(len(values)):
            gradients_agree(
                lambda v, o=order, p=pointers: kernels.segment_logsumexp(v, p, o),
                lambda v, o=order, p=pointers: expected(formula, -math.inf, v, p, o),
                values,
            )


@pytest.mark.parametrize("length", [4, 80])
def test_what_is_not_finite_stays_in_its_segment(length):
    values = torch.randn(6 * length)
    for segment, strange in enumerate([math.nan, math.inf, -math.inf, 1e38]):
        values[segment * length + 2] = strange
    values[4 * length : 5 * length] = -math.inf
    pointers = pointers_of([length] * 6)
    for order in (None, torch.cat([torch.randperm(length) + k * length for k in range(6)])):
        ours, theirs = (x.clone().requires_grad_() for x in (values, values.double()))
        found, wanted = (
            kernels.segment_logsumexp(ours, pointers, order),
            expected(formula, -math.inf, theirs, pointers, order),
        )
        close(found, wanted, torch.float32)
        slopes = [torch.autograd.grad(y.sum(), x)[0] for y, x in ((found, ours), (wanted, theirs))]
        for k in (0, 2, 3, 5):  # of +inf alone and of -inf alone the gradient is NaN, as in torch
            close(*(s[k * length : (k + 1) * length] for s in slopes), torch.float32)


@pytest.mark.parametrize("dense", [(), (2,)])
def test_first_and_second_derivatives(dense):
    pointers = pointers_of([3, 0, 2])
    for order in orders(5):
        values = torch.randn(5, *dense, dtype=torch.float64, requires_grad=True)

        def f(v, order=order):
            return kernels.segment_logsumexp(v, pointers, order)[[0, 2]]

        assert torch.autograd.gradcheck(f, values, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, values, fast_mode=True)


def test_transforms_and_complex_numbers():
    pointers, order = pointers_of([3, 1, 4]), torch.randperm(8)
    rows = torch.randn(2, 8)

    def f(row):
        return kernels.segment_logsumexp(row, pointers, order)

    torch.testing.assert_close(torch.vmap(f)(rows), torch.stack([f(row) for row in rows]))
    leaf = rows[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda v: f(v).sum())(rows[0]), slope)
    x = torch.randn(8, dtype=torch.complex64)
    torch.testing.assert_close(f(x), expected(formula, -math.inf, x, pointers, order))


@pytest.mark.parametrize("_body", ["cpu"], indirect=True)
def test_many_threads_find_what_one_finds():
    index, values = torch.randint(700, (500_003,)), torch.randn(500_003)
    pointers, order, _ = cpu.sort_rows(index, 700)
    found = cpu.segment_logsumexp(values, pointers, order)
    torch.testing.assert_close(found, reference.segment_logsumexp(values, pointers, order))
