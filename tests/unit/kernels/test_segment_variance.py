"""Means and variances of segments: each body against PyTorch on each segment, derivatives of two orders."""

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

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def _body(request):
    with use_kernels(request.param):
        yield


def of_enough(values, pointers, order, correction):
    """What a caller reads: he calls estimates of too few entries unspecified."""
    found = kernels.segment_variance(values, pointers, order, correction)[0]
    enough = (pointers.diff() > correction).view(-1, *(1,) * (found.ndim - 1))
    return torch.where(enough, found, 0)


def variance(correction):
    def formula(part):
        """torch's; of as few entries as the correction takes away 0, without a gradient: there is no estimate."""
        enough = len(part) > correction
        return torch.var(part, 0, correction=correction) if enough else part.sum(0) * 0

    return formula


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dense", [(), (3,), (2, 2)])
def test_variance_mean_and_gradient(dtype, dense):
    for lengths in LENGTHS:
        pointers = pointers_of(lengths)
        values = (torch.randn(sum(lengths), *dense) * 3 + 5).to(dtype)
        for order in orders(len(values)):
            for correction in (0, 1, 0.5):
                gradients_agree(
                    lambda v, o=order, p=pointers, c=correction: of_enough(v, p, o, c),
                    lambda v, o=order, p=pointers, c=correction: expected(variance(c), 0, v, p, o),
                    values,
                )
            gradients_agree(
                lambda v, o=order, p=pointers: kernels.segment_mean(v, p, o),
                lambda v, o=order, p=pointers: expected(lambda part: part.mean(0), 0, v, p, o),
                values,
            )
            _, mean = kernels.segment_variance(values, pointers, order)
            close(mean, expected(lambda p: p.mean(0), 0, values.double(), pointers, order), torch.float32)
            assert not mean.requires_grad


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 1e38])
def test_what_is_not_finite_stays_in_its_segment(strange):
    values = torch.randn(90)
    values[50], values[70] = strange, 1.0
    for order in (None, torch.cat([torch.randperm(45), 45 + torch.randperm(45)])):
        mean = kernels.segment_mean(values, pointers_of([45, 45]), order)
        close(mean, torch.stack([values[:45].mean(), values[45:].mean()]), torch.float32)
        found, _ = kernels.segment_variance(values, pointers_of([45, 45]), order)
        first = torch.var(values[:45].double(), 0)
        close(found[0], first, torch.float32)
        assert not found[1].isfinite() or strange == 1e38


def test_a_large_mean_costs_no_digits():
    values = (torch.randn(4000) * 16).round() / 16
    pointers, order = pointers_of([2000, 20, 1980]), torch.randperm(4000)
    for places in (None, order):
        still = kernels.segment_variance(values, pointers, places)[0]
        moved = values + 2.0**18
        found = kernels.segment_variance(moved.requires_grad_(), pointers, places)[0]
        torch.testing.assert_close(found, still, rtol=1e-6, atol=0)
        (slope,) = torch.autograd.grad(found[0], moved)
        leaf = values.double().requires_grad_()
        part = leaf[:2000] if places is None else leaf[places[:2000]]
        (wanted,) = torch.autograd.grad(torch.var(part), leaf)
        torch.testing.assert_close(slope.double(), wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dense", [(), (2,)])
def test_first_and_second_derivatives(dense):
    pointers = pointers_of([3, 0, 2])
    for order in orders(5):
        values = torch.randn(5, *dense, dtype=torch.float64, requires_grad=True)

        def f(v, order=order):
            return kernels.segment_variance(v, pointers, order)[0]

        def g(v, order=order):
            return kernels.segment_mean(v * v, pointers, order)

        for function in (f, g):
            assert torch.autograd.gradcheck(function, values, fast_mode=True)
            assert torch.autograd.gradgradcheck(function, values, fast_mode=True)


def test_transforms_and_complex_numbers():
    pointers, order = pointers_of([3, 1, 4]), torch.randperm(8)
    rows = torch.randn(2, 8)

    def f(row):
        return kernels.segment_variance(row, pointers, order, 0)[0]

    torch.testing.assert_close(torch.vmap(f)(rows), torch.stack([f(row) for row in rows]))
    leaf = rows[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda v: f(v).sum())(rows[0]), slope)
    x = torch.randn(8, dtype=torch.complex64)
    found, mean = kernels.segment_variance(x, pointers, order, 0)
    torch.testing.assert_close(found, expected(variance(0), 0, x, pointers, order))
    assert mean.is_complex()
    wanted = expected(lambda part: part.mean(0), 0, x, pointers, order)
    torch.testing.assert_close(kernels.segment_mean(x, pointers, order), wanted)


@pytest.mark.parametrize("_body", ["cpu"], indirect=True)
def test_many_threads_find_what_one_finds():
    index, values = torch.randint(700, (500_003,)), torch.randn(500_003)
    pointers, order, _ = cpu.sort_rows(index, 700)
    found = cpu.segment_variance(values, pointers, order, 1.0)
    torch.testing.assert_close(found, reference.segment_variance(values, pointers, order, 1.0))
    mean = reference.segment_mean(values, pointers, order)
    torch.testing.assert_close(cpu.segment_mean(values, pointers, order), mean)
