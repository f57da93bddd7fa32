"""Looking rows up: both bodies against indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskgrad import kernels
from tests.unit.kernels.bodies import cpu, reference

BODIES = [reference, cpu]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@given(
    st.sampled_from(DTYPES), st.sampled_from([(), (1,), (17,), (2, 3)]), st.integers(1, 50), st.integers(0, 70),
    st.sampled_from([torch.int32, torch.int64]),
)  # fmt: skip
def test_rows_are_moved_bit_for_bit(
    dtype: torch.dtype, row: tuple[int, ...], num_rows: int, n: int, index_dtype: torch.dtype
) -> None:
    table = torch.randn(num_rows, *row).to(dtype)
    table.view(-1)[::3] = torch.nan
    indices = torch.randint(0, num_rows, (n,), dtype=index_dtype)
    for body in BODIES:
        found = body.lookup_rows(table, indices)
        assert found.dtype == dtype
        assert found.shape == (n, *row)
        assert torch.equal(found.nan_to_num(7), table[indices.long()].nan_to_num(7))


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_table_is_named(body: Any, index: int) -> None:
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        body.lookup_rows(torch.ones(5, 2), torch.tensor([0, index, 1]))


def test_many_rows_over_threads_and_tables_with_gaps() -> None:
    table, indices = torch.randn(3000, 2, 64), torch.randint(0, 3000, (20_000,))
    whole, part = table.view(3000, 128), table[:, 1]
    assert not kernels.lookup_rows.is_compiled_for(whole, indices)
    with kernels.use_kernels("cpu"):
        assert kernels.lookup_rows.is_compiled_for(whole, indices)
        assert not kernels.lookup_rows.is_compiled_for(part, indices)
        assert torch.equal(kernels.lookup_rows(whole, indices), whole[indices])
        assert torch.equal(kernels.lookup_rows(part, indices), part[indices])
    assert torch.equal(cpu.lookup_rows(part, indices[::2]), part[indices[::2]])
