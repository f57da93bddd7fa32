"""Products of segments: each body against PyTorch on each segment, derivatives of two orders."""

from __future__ import annotations

import math

import pytest
import torch

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.bodies import cpu
from tests.unit.kernels.segment_cases import FLOATS, LENGTHS, expected, gradients_agree, orders, pointers_of


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def _body(request):
    with use_kernels(request.param):
        yield


def factors(*shape):
    """Products that neither overflow nor vanish, with a zero here and there."""
    signs = torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)
    return torch.where(torch.rand(shape) < 0.03, 0.0, signs * (0.8 + 0.4 * torch.rand(shape)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dense", [(), (3,), (2, 2)])
def test_product_and_gradient(dtype, dense):
    for lengths in LENGTHS:
        pointers = pointers_of(lengths)
        values = factors(sum(lengths), *dense).to(dtype)
        for order in orders(len(values)):
            gradients_agree(
                lambda v, o=order, p=pointers: kernels.segment_product(v, p, o),
                lambda v, o=order, p=pointers: expected(lambda part: part.prod(0), 1, v, p, o),
                values,
            )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_integers_are_multiplied_in_int64(dtype):
    pointers = pointers_of(LENGTHS[1])
    values = torch.randint(0 if dtype == torch.bool else 1, 4, (int(pointers[-1]),)).to(dtype)
    for order in orders(len(values)):
        found = kernels.segment_product(values, pointers, order)
        wanted = expected(lambda part: part.prod(0), 1, values.long(), pointers, order)
        assert found.dtype == torch.int64
        assert torch.equal(found, wanted)


def test_zeros_infinities_and_nan():
    rows = [[0, 2, 3], [0, 0, 3], [0, math.inf, 1], [math.nan, 0, 1], [1e30, 1e30, 2], [0, 1e30, 1e30]]
    values = torch.tensor(rows).view(-1).requires_grad_()
    pointers = pointers_of([3] * 6)
    found = kernels.segment_product(values, pointers, None)
    wanted = torch.stack([values.detach()[3 * k : 3 * k + 3].prod() for k in range(6)])
    torch.testing.assert_close(found.detach(), wanted, equal_nan=True)
    (slope,) = torch.autograd.grad(found[[0, 1, 4]].sum(), values)
    assert slope[:6].tolist() == [6, 0, 0, 0, 0, 0]
    assert slope[12:14].tolist() == pytest.approx([2e30, 2e30])  # not inf / 1e30


@pytest.mark.parametrize("dense", [(), (2,)])
def test_first_and_second_derivatives(dense):
    pointers = pointers_of([3, 0, 2])
    for order in orders(5):
        values = torch.randn(5, *dense, dtype=torch.float64)
        values[[1, 4]] = 0
        values.requires_grad_()

        def f(v, order=order):
            return kernels.segment_product(v, pointers, order)

        assert torch.autograd.gradcheck(f, values, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, values, fast_mode=True)


def test_transforms_and_complex_numbers():
    pointers, order = pointers_of([3, 1, 4]), torch.randperm(8)
    rows = torch.randn(2, 8)

    def f(row):
        return kernels.segment_product(row, pointers, order)

    torch.testing.assert_close(torch.vmap(f)(rows), torch.stack([f(row) for row in rows]))
    leaf = rows[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda v: f(v).sum())(rows[0]), slope)
    x = torch.randn(8, dtype=torch.complex64)
    torch.testing.assert_close(f(x), expected(lambda part: part.prod(0), 1, x, pointers, order))


@pytest.mark.parametrize("_body", ["cpu"], indirect=True)
def test_many_threads_find_what_one_finds():
    index, values = torch.randint(700, (500_003,)), 1 + 0.01 * torch.randn(500_003, dtype=torch.float64)
    pointers, order, _ = cpu.sort_rows(index, 700)
    found = cpu.segment_prod(values, pointers, order)[0]
    wanted = torch.ones(700, dtype=torch.float64).scatter_reduce(0, index, values, "prod")
    torch.testing.assert_close(found, wanted)
