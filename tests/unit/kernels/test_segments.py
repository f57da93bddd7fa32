"""What all segments rest on: rows are sorted, and each entry is given what its segment has."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.segments import Rows
from tests.effort import examples
from tests.unit.kernels.segments import SegmentSuite


class TestSegmentExpand(SegmentSuite):
    """The sums of segments are given back to their entries."""

    kernel = "segment_expand"
    per_entry = True
    widens = True
    integers = (torch.int32, torch.int64)

    def call(self, operands, where, variant):
        (values,) = operands
        rows = Rows(*where, len(values))
        return kernels.segment_expand(kernels.segment_sum(values, rows), rows)

    def alone(self, x: Tensor) -> Tensor:
        return x.sum().expand(len(x))

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in self.integers else super().result_dtype(dtype)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([torch.int32, torch.int64]))
def test_rows_are_sorted_stably(indices: list[int], dtype: torch.dtype) -> None:
    index = torch.tensor(indices, dtype=dtype)
    pointers, order, rows = kernels.sort_rows(index)
    assert order.tolist() == sorted(range(len(index)), key=lambda i: int(index[i]))
    assert rows.tolist() == sorted(set(index.tolist()))
    assert pointers.diff().tolist() == [int((index == row).sum()) for row in rows]
    assert pointers.dtype == order.dtype == torch.int64
