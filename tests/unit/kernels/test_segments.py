"""What all segments rest on: rows are sorted, and each entry is given what its segment has."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskgrad import kernels
from tests.effort import examples
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.segments import SegmentSuite

BODIES = [reference, cpu]


class TestSegmentExpand(SegmentSuite):
    """The sums of segments are given back to their entries."""

    kernel = "segment_expand"
    per_entry = True
    widens = True
    integers = (torch.int32, torch.int64)

    def call(self, operands, where, variant):
        (values,) = operands
        return kernels.segment_expand(kernels.segment_sum(values, *where), *where, len(values))

    def alone(self, x: Tensor) -> Tensor:
        return x.sum().expand(len(x))

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in self.integers else super().result_dtype(dtype)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([torch.int32, torch.int64]))
def test_rows_are_sorted_stably(indices: list[int], dtype: torch.dtype) -> None:
    index = torch.tensor(indices, dtype=dtype)
    for body in BODIES:
        pointers, order, rows = body.sort_rows(index, 51)
        assert order.tolist() == sorted(range(len(index)), key=lambda i: int(index[i]))
        assert rows.tolist() == sorted(set(index.tolist()))
        assert pointers.diff().tolist() == [int((index == row).sum()) for row in rows]
        assert pointers.dtype == order.dtype == torch.int64


def test_many_rows_are_sorted_over_threads() -> None:
    index = torch.randint(700, (500_003,))
    for mine, theirs in zip(cpu.sort_rows(index, 700), reference.sort_rows(index, 700), strict=True):
        assert torch.equal(mine, theirs)


def test_rows_of_an_enormous_table_are_sorted_too() -> None:
    indices = torch.tensor([2**62, 3, 2**62, 0])
    for body in BODIES:
        pointers, order, rows = body.sort_rows(indices, 2**63 - 1)
        assert (pointers.tolist(), order.tolist()) == ([0, 1, 2, 4], [3, 1, 0, 2])
        assert rows.tolist() == [0, 3, 2**62]
