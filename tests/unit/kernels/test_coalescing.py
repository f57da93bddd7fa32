"""merge_rows: PyTorch's reduction of the rows that share an index."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.kernels import merge_rows

REDUCTIONS: dict[str, Any] = {
    "sum": Tensor.sum,
    "mean": Tensor.mean,
    "amax": Tensor.amax,
    "amin": Tensor.amin,
}


@pytest.mark.parametrize("num_rows", [7, 2048, 2049, 10**12, 2**54])
def test_distinct_indices_ascend(num_rows: int) -> None:
    for n in (0, 1, 200):
        indices = torch.randint(0, num_rows, (n,))
        rows, _ = merge_rows(indices, torch.ones(n, 2), num_rows)
        assert rows.dtype == torch.int64
        assert rows.tolist() == sorted(set(indices.tolist()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float64])
def test_rows_are_merged_in_their_dtype_with_their_gradients(dtype: torch.dtype) -> None:
    indices, values = torch.randint(0, 9, (50,)), torch.randint(0, 9, (50, 3)).to(dtype)
    for reduce in REDUCTIONS if dtype.is_floating_point else ("sum", "amax", "amin"):
        leaf = values.clone().requires_grad_(dtype.is_floating_point)
        rows, merged = merge_rows(indices, leaf, 9, reduce)
        wanted = torch.stack([REDUCTIONS[reduce](leaf[indices == row], 0).to(dtype) for row in rows])
        torch.testing.assert_close(merged, wanted)
        if leaf.requires_grad:
            weight = torch.randn_like(wanted)
            torch.testing.assert_close(*(torch.autograd.grad(x, leaf, weight) for x in (merged, wanted)))


@pytest.mark.parametrize(
    ("values", "total"),
    [
        (torch.ones(4096, dtype=torch.float16), 4096.0),
        (torch.ones(4096, dtype=torch.bfloat16), 4096.0),
        (torch.tensor([1e8, 1.0, -1e8, 1.0], dtype=torch.float32), 2.0),
        pytest.param(torch.ones(1).expand(2**25), 2.0**25, marks=pytest.mark.large(per="elsewhere")),
    ],
    ids=["float16", "bfloat16", "large and small", "33 million"],
)
def test_sums_are_rounded_once(values: Tensor, total: float) -> None:
    rows, merged = merge_rows(torch.full((len(values),), 3), values, 10)
    assert (rows.tolist(), merged.tolist()) == ([3], [total])


@pytest.mark.parametrize(
    ("error", "words", "changed"),
    [
        (IndexError, r"must lie in \[0, 10\).*but one is -1", {"indices": torch.tensor([0, -1])}),
        (IndexError, r"must lie in \[0, 10\).*but one is 10", {"indices": torch.tensor([10, 0])}),
        (ValueError, r"reduce must be one of sum, mean, amax, amin; got 'prod'", {"reduce": "prod"}),
        (TypeError, r"is not defined for torch.int64", {"reduce": "mean", "values": torch.tensor([1, 2])}),
        (TypeError, r"a 1-D int64 tensor; got 1-D torch.int32", {"indices": torch.tensor([0, 1]).int()}),
        (ValueError, r"one row for each of 2 indices; got \(3,\)", {"values": torch.ones(3)}),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    error: type[Exception], words: str, changed: dict[str, Any]
) -> None:
    given = {"indices": torch.tensor([0, 1]), "values": torch.ones(2), "num_rows": 10, **changed}
    with pytest.raises(error, match=words):
        merge_rows(**given)


@pytest.mark.parametrize(("reduce", "other"), [("amax", -1.0), ("amin", 1.0)])
def test_an_extremum_of_0_keeps_its_whole_gradient(reduce: str, other: float) -> None:
    """It starts from a value that must not count among the ties; NaN is the extremum."""
    values = torch.tensor([[0.0], [other], [other], [other], [math.nan]], requires_grad=True)
    _, merged = merge_rows(torch.tensor([1, 1, 4, 3, 3]), values, 5, reduce)
    torch.testing.assert_close(merged, torch.tensor([[0.0], [math.nan], [other]]), equal_nan=True)
    (slope,) = torch.autograd.grad(merged[[0, 2]].sum(), values)
    assert slope.tolist()[:3] == [[1.0], [0.0], [1.0]]
