"""merge_rows: PyTorch's reduction of the rows that share an index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.kernels import merge_rows
from maskgrad.kernels.segments import segment_index
from tests.unit.kernels.segments import SegmentSuite

REDUCTIONS = {"sum": Tensor.sum, "mean": Tensor.mean, "amax": Tensor.amax, "amin": Tensor.amin}


class TestMergeRows(SegmentSuite):
    """A row is a segment of those that share its index; the table may be much larger."""

    kernel = "merge_rows"
    variants = tuple((reduce, rows) for rows in (1000, 10**12) for reduce in REDUCTIONS)
    nonempty = True
    slack = 2.0

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        (values,), (reduce, rows) = operands, variant
        index = segment_index(*where, len(values)) * (rows // 1000)
        indices, merged = merge_rows(index, values, rows, reduce)
        return merged, indices // (rows // 1000)

    def alone(self, x: Tensor, reduce: str, rows: int) -> Tensor:
        return REDUCTIONS[reduce](x, 0)

    def special(self) -> list[list[float]]:
        return [
            [-math.inf, math.inf, 0.0],
            [math.inf, 1.0, 1.0],
            [2.0, 2.0, 1.0],
            [0.0, -1.0, 0.0],
        ]


def test_distinct_indices_ascend() -> None:
    for n, num_rows in (
        (1, 1),
        (50, 7),
        (400, 90),
        (60, 10**12),
        (200, 2048),
        (200, 2049),
        (200, 2**54),
        (0, 4),
    ):
        indices = torch.randint(0, num_rows, (n,))
        rows, _ = merge_rows(indices, torch.ones(n, 2), num_rows)
        assert rows.dtype == torch.int64
        assert rows.tolist() == sorted(set(indices.tolist()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_are_merged_in_their_dtype(dtype: torch.dtype) -> None:
    indices, values = torch.randint(0, 9, (100,)), torch.randint(-99, 99, (100, 3)).to(dtype)
    for reduce in ("sum", "amax", "amin"):
        rows, merged = merge_rows(indices, values, 9, reduce)
        assert merged.dtype == dtype
        wanted = [REDUCTIONS[reduce](values[indices == row], 0).to(dtype) for row in rows]
        assert torch.equal(merged, torch.stack(wanted))
    for small in (torch.int8, torch.uint8):
        assert merge_rows(torch.tensor([1, 0, 1]), torch.tensor([1, 2, 3], dtype=small), 2)[1].tolist() == [
            2,
            4,
        ]


@pytest.mark.parametrize(
    ("values", "total"),
    [
        (torch.ones(4096, dtype=torch.float16), 4096.0),
        (torch.ones(4096, dtype=torch.bfloat16), 4096.0),
        (torch.tensor([1e8, 1.0, -1e8, 1.0]), 2.0),
        pytest.param(torch.ones(1).expand(2**25), 2.0**25, marks=pytest.mark.large(per="elsewhere")),
    ],
    ids=["float16", "bfloat16", "large and small", "33 million"],
)
def test_sums_are_rounded_once(values: Tensor, total: float) -> None:
    rows, merged = merge_rows(torch.full((len(values),), 3), values, 10)
    assert rows.tolist() == [3]
    assert merged.tolist() == [total]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_is_the_extremum(reduce: str) -> None:
    indices, values = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1.0, math.nan, 2.0, -math.inf, math.inf])
    merged = merge_rows(indices, values, 2, reduce)[1]
    assert merged[0].isnan()
    assert merged[1].item() == (math.inf if reduce == "amax" else -math.inf)


@pytest.mark.parametrize("index", [-1, 10, 2**40])
def test_an_index_outside_the_table_is_named(index):
    indices, values = torch.tensor([1, index, 2]), torch.ones(3, 2)
    with pytest.raises(IndexError, match=rf"must lie in \[0, 10\).*but one is {index}"):
        merge_rows(indices, values, 10)


def test_reductions_and_indices_that_do_not_fit_are_named():
    indices, values = torch.tensor([0, 1]), torch.ones(2)
    with pytest.raises(ValueError, match=r"reduce must be one of sum, mean, amax, amin; got 'prod'"):
        merge_rows(indices, values, 2, "prod")
    with pytest.raises(TypeError, match=r"is not defined for torch.int64"):
        merge_rows(indices, values.long(), 2, "mean")
    with pytest.raises(TypeError, match=r"indices must be a 1-D int64 tensor; got 1-D torch.int32"):
        merge_rows(indices.int(), values, 2)
    with pytest.raises(ValueError, match=r"values must have one row for each of 2 indices; got \(3,\)"):
        merge_rows(indices, torch.ones(3), 2)


@pytest.mark.parametrize(("reduce", "other"), [("amax", -1.0), ("amin", 1.0)])
def test_an_extremum_of_0_keeps_its_whole_gradient(reduce: str, other: float) -> None:
    """It starts from a value that must not count among the ties."""
    values = torch.tensor([[0.0], [other], [other]], requires_grad=True)
    _, merged = merge_rows(torch.tensor([1, 1, 4]), values, 5, reduce)
    assert merged.tolist() == [[0.0], [other]]
    merged.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1.0], [0.0], [1.0]]
