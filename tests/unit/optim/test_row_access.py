"""Rows are read and written alike, however the tensors lie in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maskgrad.optim.engine import RowAccess

SHAPE = (3, 4, 5)
LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "strided": lambda t: torch.stack([t, t], 1)[:, 0],
}


@pytest.mark.parametrize("leading", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_rows_come_out_and_go_back(leading: int, layout: type, dtype: torch.dtype) -> None:
    param, state = (layout(torch.randn(SHAPE, dtype=dtype)) for _ in range(2))
    plain: list[Tensor] = [t.contiguous().clone().view(-1, *SHAPE[leading:]) for t in (param, state)]
    access = RowAccess([param, state], leading)
    rows = torch.tensor([access.number - 1, 0])
    found = access.gather(rows)
    for t, all_rows in zip(found, plain, strict=True):
        expected = all_rows[rows]
        if dtype.is_complex:
            expected = torch.view_as_real(expected)
        assert t.dtype is torch.float32
        assert torch.equal(t, expected.float())
    access.scatter(rows, [t + 1 for t in found])
    one = 1 + 1j if dtype.is_complex else 1  # both parts of a complex number
    for t, all_rows in zip((param, state), plain, strict=True):
        all_rows[rows] += one
        torch.testing.assert_close(t.reshape(all_rows.shape), all_rows, rtol=1e-2, atol=1e-2)


def test_states_with_one_value_per_row_and_markers() -> None:
    param, per_row, marker = torch.randn(3, 4), torch.randn(3, 1), torch.zeros(3, 4, dtype=torch.bool)
    access = RowAccess([param, per_row, marker], 1)
    found = access.gather(torch.tensor([2]))
    assert [t.shape for t in found] == [(1, 4), (1, 1), (1, 4)]
    assert found[2].dtype is torch.bool
    access.scatter(torch.tensor([2]), [found[0], found[1] * 0, ~found[2]])
    assert per_row[2] == 0
    assert marker.sum() == 4


def test_pieces_have_about_as_many_entries_as_asked_for() -> None:
    access = RowAccess([torch.zeros(10, 3)], 1)
    assert [len(p) for p in access.pieces(torch.arange(10), 12)] == [4, 4, 2]
    assert [len(p) for p in access.pieces(torch.arange(2), 1)] == [1, 1]
    assert [len(p) for p in RowAccess([torch.zeros(4, 0)], 1).pieces(torch.arange(4), 3)] == [3, 1]
