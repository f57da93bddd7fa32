"""Stored entries under torch.autocast: PyTorch's dtypes, and its numbers on full input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg

HALF = torch.bfloat16
MATRIX, ROWS = (3, 6), (2, 3, 6)
#: Called with an operand, a weight for its last dimension and a bias.
STORED = {
    "linear": (ROWS, F.linear),
    "matmul": (ROWS, lambda x, w, b: x @ w.mT),
    "mm": (MATRIX, lambda x, w, b: torch.mm(x, w.mT)),
    "addmm": (MATRIX, lambda x, w, b: torch.addmm(b, x, w.mT)),
    "baddbmm": (ROWS, lambda x, w, b: torch.baddbmm(b, x, w.mT.expand(2, 6, 4))),
    "inner": (MATRIX, lambda x, w, b: torch.inner(x, w)),
    "vecdot": (MATRIX, lambda x, w, b: torch.linalg.vecdot(x, x)),
    "prelu": (MATRIX, lambda x, w, b: F.prelu(x, b[:1].abs())),
    "sum": (MATRIX, lambda x, w, b: x.sum(1)),
}


@pytest.mark.parametrize("of", [torch.float32, HALF])
@pytest.mark.parametrize("name", STORED)
def test_stored_entries_are_cast_as_a_mask_is(name: str, of: torch.dtype) -> None:
    shape, call = STORED[name]
    x, weight, bias = (torch.randn(size).to(of) for size in (shape, (4, 6), (4,)))
    with torch.autocast("cpu", HALF):
        expected, found = call(x, weight, bias), call(mg.masked(x).to_sparse(), weight, bias)
    assert found.mask.all()
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.filled(0.0), expected, rtol=0.03, atol=0.03)


def test_operands_of_another_half_precision_are_joined() -> None:
    """torch.cat and index_copy refuse it under autocast; what is no cat for the user must not."""
    rows, there = torch.randn(2, 3, 4).half(), torch.arange(3) < torch.tensor([[3], [1]])
    index = mg.masked(torch.tensor([0, 9]), torch.tensor([True, False]))
    with torch.autocast("cpu", HALF):
        padded = mg.from_lengths(rows, torch.tensor([3, 1]), layout=torch.jagged).to_dense()
        added = torch.index_add(torch.zeros(2, 3, 4).half(), 0, index, rows)
    assert padded.mask.equal(there[..., None].expand(2, 3, 4))
    assert padded.filled(0.0).equal(torch.where(there[..., None], rows, 0))
    assert added.equal(torch.stack([rows[0], torch.zeros_like(rows[0])]))
