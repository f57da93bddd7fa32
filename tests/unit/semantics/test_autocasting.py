"""Stored entries under torch.autocast: PyTorch's dtypes, and its numbers on full input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, *HALVES]
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


def compare(
    call: Any, make: Callable[[Tensor], Any], shape: tuple[int, ...], of: torch.dtype, to: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape).to(of), torch.randn(4, 6).to(of), torch.randn(4).to(of)
    with torch.autocast("cpu", to):
        expected, found = call(x, weight, bias), call(make(x), weight, bias)
    if isinstance(found, mg.MaskedTensor):
        assert found.mask.all()
        found = found.filled(0.0)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("to", HALVES)
@pytest.mark.parametrize("of", DTYPES)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", STORED)
def test_stored_entries_are_cast_as_a_mask_is(
    name: str, layout: torch.layout, of: torch.dtype, to: torch.dtype
) -> None:
    shape, call = STORED[name]
    if len(shape) > 2 and layout is not torch.sparse_coo:
        shape = (1, *shape[1:])
        if name == "baddbmm":
            return
    mask = torch.ones(shape, dtype=torch.bool)
    compare(call, lambda x: mg.masked(x, mask).to_sparse(layout=layout), shape, of, to)


@pytest.mark.parametrize("to", HALVES)
def test_operands_of_another_half_precision_are_joined(to: torch.dtype) -> None:
    """torch.cat and index_copy refuse it under autocast; what is no cat for the user must not."""
    of = HALVES[1 - HALVES.index(to)]
    rows, there = torch.randn(2, 3, 4).to(of), torch.arange(3) < torch.tensor([[3], [1]])
    index = mg.masked(torch.tensor([0, 9]), torch.tensor([True, False]))
    with torch.autocast("cpu", to):
        padded = mg.from_lengths(rows, torch.tensor([3, 1]), layout=torch.jagged).to_dense()
        added = torch.index_add(torch.zeros(2, 3, 4).to(of), 0, index, rows)
    assert padded.mask.equal(there[..., None].expand(2, 3, 4))
    assert padded.filled(0.0).equal(torch.where(there[..., None], rows, 0))
    added = added.filled(0.0) if isinstance(added, mg.MaskedTensor) else added
    assert added.equal(torch.stack([rows[0], torch.zeros_like(rows[0])]))
