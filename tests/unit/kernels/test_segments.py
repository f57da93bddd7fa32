"""What all segments rest on: rows are sorted."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from tests.effort import examples


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([torch.int32, torch.int64]))
def test_rows_are_sorted_stably(indices: list[int], dtype: torch.dtype) -> None:
    index = torch.tensor(indices, dtype=dtype)
    pointers, order, rows = kernels.sort_rows(index)
    assert order.tolist() == sorted(range(len(index)), key=lambda i: int(index[i]))
    assert rows.tolist() == sorted(set(index.tolist()))
    assert pointers.diff().tolist() == [int((index == row).sum()) for row in rows]
    assert pointers.dtype == order.dtype == torch.int64
