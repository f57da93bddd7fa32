"""Facts and values from files; damages to patterns: test_layouts.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor.tensor import rebuild_stored

COO = ("sparse_coo", (2,), None)


@pytest.mark.every
@pytest.mark.parametrize(
    ("values", "facts"),
    [
        *[
            (torch.zeros(1), facts)
            for facts in (
                ("strided", (2,), None), ("__class__", (2,), None), None, ("sparse_coo", (2,)),
                ("sparse_csr", (2, 2), (1, 1)), ("sparse_coo", (), None), ("sparse_coo", (2**40, 2**40), None),
            )
        ],
        (3.0, COO), (torch.eye(2).to_sparse(), COO), (torch.zeros(1, device="meta"), COO),
    ],
)  # fmt: skip
def test_what_is_no_pattern_and_no_plain_tensor_is_refused(values: Any, facts: Any) -> None:
    with pytest.raises((ValueError, IndexError, TypeError)):
        rebuild_stored(values, facts, (torch.zeros(1, 1, dtype=torch.int64),))


@pytest.mark.parametrize("tensors", [None, 3, {}, torch.zeros(1, 1, dtype=torch.int64), [0]])
def test_what_is_no_sequence_of_tensors_is_refused(tensors: Any) -> None:
    with pytest.raises(ValueError, match="a stored MaskedTensor has a layout"):
        rebuild_stored(torch.zeros(1), COO, tensors)


def test_narrow_indices_are_widened() -> None:
    size = 3_000_000  # whose square no int32 can number
    at = torch.tensor([[0, 2_999_999], [5, 2_999_998]], dtype=torch.int32)
    x = rebuild_stored(torch.ones(2), ("sparse_coo", (size, size), None), (at,))
    assert (x * 2)[2_999_999, 2_999_998].item() == 2
    pointers, columns = torch.tensor([0, 1, 2]).int(), torch.tensor([1, 0]).int()
    t = torch.sparse_csr_tensor(pointers, columns, torch.ones(2), (2, 2))
    assert mg.from_sparse(t).T.sum(0).tolist() == [1.0, 1.0]
