"""Segments for CUDA against the reference."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.kernels.bodies import cuda, reference

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = [[3], [5, 1, 31, 32, 33, 2], [200, 3, 64], []]

pytestmark = pytest.mark.usefixtures("device")


def agree(name, *args):
    found, expected = getattr(cuda, name)(*args), getattr(reference, name)(*args)
    tolerance = ROUNDING.get(expected.dtype, 0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    return expected


def pointers_of(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("lengths", "dense"), [(LENGTHS[0], (3,)), (LENGTHS[1], ()), (LENGTHS[2], (17,)), (LENGTHS[3], ())]
)
def test_sum_spread_and_extremum(dtype, dense, lengths):
    pointers, number = pointers_of(lengths), sum(lengths)
    values = (torch.randn(number, *dense) * 9).to(dtype)
    for order in (None, torch.randperm(number)):
        agree("segment_sum", values, pointers, order)
        best = agree("segment_extremum", values, pointers, order, True)
        agree("segment_extremum", values, pointers, order, False)
        agree("segment_expand", best, pointers, order, number)


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("lengths", "dense"), [(LENGTHS[1], ()), (LENGTHS[2], (3,)), (LENGTHS[3], ())])
def test_softmax(logarithm, dtype, dense, lengths):
    pointers, number = pointers_of(lengths), sum(lengths)
    values = (torch.randn(number, *dense) * 9).to(dtype)
    for order in (None, torch.randperm(number)):
        soft = agree("segment_softmax", values, pointers, order, logarithm)
        agree("segment_softmax_backward", torch.randn_like(values), soft, pointers, order, logarithm)


@pytest.mark.parametrize("length", [4, 80])
def test_what_is_not_finite_stays_in_its_segment(length):
    values = torch.randn(6 * length)
    for segment, strange in enumerate([math.nan, math.inf, -math.inf, 1e38]):
        values[segment * length + 2] = strange
    values[4 * length : 5 * length] = -math.inf
    pointers = pointers_of([length] * 6)
    for order in (None, torch.cat([torch.randperm(length) + k * length for k in range(6)])):
        agree("segment_sum", values, pointers, order)
        for flag in (False, True):
            agree("segment_extremum", values, pointers, order, flag)
            agree("segment_softmax", values, pointers, order, flag)
    only_nan = torch.tensor([math.nan, math.nan, 1.0])
    agree("segment_extremum", only_nan, pointers_of([2, 1]), None, True)


def test_sums_are_rounded_once_and_may_be_wider():
    pointers, values = torch.tensor([0, 4]), torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert cuda.segment_sum(values, pointers, None).item() == 2.0
    agree("segment_sum", values.half().clamp(max=100), pointers, None, torch.float64)
    agree("segment_sum", values.long(), pointers, None, torch.float64)
    agree("segment_sum", torch.full((4,), 2**53 + 1), pointers, None)


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    values, pointers, order = torch.randn(40, 3), pointers_of([7, 33]), torch.randperm(40)
    agree("segment_sum", values, pointers, order)
    agree("segment_softmax", values, pointers, order, False)


def test_strides():
    values, pointers = torch.randn(3, 40).t(), pointers_of([7, 33])
    agree("segment_sum", values, pointers, None)
    agree(
        "segment_softmax",
        values[::2],
        pointers_of([7, 13]),
        torch.randperm(40)[torch.randperm(40) < 20].argsort(),
        False,
    )


def test_rows_are_sorted_stably_and_refused_outside_the_table():
    indices = torch.randint(0, 9, (50,))
    for found, expected in zip(cuda.sort_rows(indices, 9), reference.sort_rows(indices, 9), strict=True):
        assert torch.equal(found, expected)
    for index in (-1, 9, 2**40):
        with pytest.raises(IndexError, match=rf"must lie in \[0, 9\).*indices\[1\] is {index}"):
            cuda.sort_rows(torch.tensor([1, index, 2]), 9)
