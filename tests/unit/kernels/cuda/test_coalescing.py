"""merge_rows for CUDA against the reference."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.unit.kernels.bodies import cuda, reference

REDUCTIONS = ["sum", "mean", "amax", "amin"]
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

pytestmark = pytest.mark.usefixtures("device")


def check(indices, values, num_rows, reduce="sum"):
    found = cuda.merge_rows(indices, values, num_rows, reduce)
    expected = reference.merge_rows(indices, values, num_rows, reduce)
    assert torch.equal(found[0], expected[0])
    tolerance = ROUNDING.get(values.dtype, 0)
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("reduce", "dtype"),
    [
        *itertools.product(REDUCTIONS, ROUNDING),
        *itertools.product(("sum", "amax", "amin"), (torch.int32, torch.int64)),
    ],
)
def test_any_size(reduce, dtype):
    for n, num_rows, row in [
        (1, 1, ()),
        (50, 7, (3,)),
        (60, 10**12, (2, 5)),
        (33, 5, (1,)),
        (0, 4, (3,)),
        (5, 4, (0,)),
    ]:
        check(torch.randint(0, num_rows, (n,)), (torch.randn(n, *row) * 9).to(dtype), num_rows, reduce)


def test_duplicates_are_rounded_once():
    zeros = torch.zeros(4, dtype=torch.int64)
    assert cuda.merge_rows(zeros, torch.tensor([1e8, 1.0, -1e8, 1.0]), 1)[1].tolist() == [2.0]
    for dtype in (torch.float16, torch.bfloat16):
        ones = torch.ones(4096, 2, dtype=dtype)
        assert cuda.merge_rows(torch.full((4096,), 3), ones, 10)[1].tolist() == [[4096.0, 4096.0]]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_what_is_not_finite_stays_in_its_row(reduce):
    indices = torch.tensor([0, 0, 0, 1, 1, 2])
    check(indices, torch.tensor([1.0, torch.nan, 2.0, -torch.inf, torch.inf, 1e38]), 3, reduce)


def test_any_strides():
    indices, wide = torch.randint(0, 50, (30,)).repeat_interleave(2)[::2], torch.randn(30, 8, 3)
    for values in (wide[:, ::2], wide.transpose(1, 2), wide[0].expand(30, 8, 3)):
        check(indices, values, 50)


@pytest.mark.parametrize("index", [-1, 10, 2**40])
def test_an_index_outside_the_table_is_named(index):
    with pytest.raises(IndexError, match=rf"must lie in \[0, 10\).*indices\[1\] is {index}"):
        cuda.merge_rows(torch.tensor([1, index, 2]), torch.ones(3, 2), 10)
