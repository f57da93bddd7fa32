"""Random patterns of every layout are accepted, damaged ones refused, before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor.tensor import rebuild_stored

#: What a refusal may be.
REFUSALS = (ValueError, IndexError, TypeError)


@pytest.mark.parametrize(
    "facts",
    [
        ("strided", (2,), None), ("sparse_xyz", (2,), None), ("__class__", (2,), None), None, ("sparse_coo", (2,)),
        ("sparse_coo", (2,), (1, 1)), ("sparse_csr", (2, 2), (1, 1)), ("sparse_coo", (), None),
        ("sparse_coo", (2**40, 2**40), None),
    ],
)  # fmt: skip
def test_facts_that_are_none_are_refused(facts: Any) -> None:
    with pytest.raises(REFUSALS):
        rebuild_stored(torch.zeros(1), facts, (torch.zeros(1, 1, dtype=torch.int64),))


@pytest.mark.parametrize("values", [3.0, torch.eye(2).to_sparse(), torch.zeros(1, device="meta")])
def test_values_that_are_no_plain_tensor_are_refused(values: Any) -> None:
    with pytest.raises(REFUSALS):
        rebuild_stored(values, ("sparse_coo", (2,), None), (torch.zeros(1, 1, dtype=torch.int64),))


def test_narrow_indices_are_widened() -> None:
    size = 3_000_000  # whose square no int32 can number
    at = torch.tensor([[0, 2_999_999], [5, 2_999_998]], dtype=torch.int32)
    x = rebuild_stored(torch.ones(2), ("sparse_coo", (size, size), None), (at,))
    assert (x * 2)[2_999_999, 2_999_998].item() == 2
    t = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32),
        torch.tensor([1, 0], dtype=torch.int32),
        torch.ones(2),
        (2, 2),
    )
    assert mg.from_sparse(t).T.sum(0).tolist() == [1.0, 1.0]
