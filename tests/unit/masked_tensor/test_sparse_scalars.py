"""COO tensors without dimensions: one number, or none; what is right is computed with Python's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nan

import maskgrad as mg


def scalar(number: float | None) -> Any:
    """Of one number, or of none with NaN in its place."""
    known = number is not None
    return mg.masked(torch.tensor(number if known else nan), torch.tensor(known)).to_sparse()


def test_a_sparse_scalar_broadcasts_and_is_stacked() -> None:
    three = torch.tensor([1.0, 2.0, 3.0])
    for number, expected in ((2.0, [2.0, 4.0, 6.0]), (None, [None] * 3)):
        assert (scalar(number) * three).tolist() == expected
        assert (scalar(number) * mg.masked(three).to_sparse()).tolist() == expected
        assert torch.stack([scalar(number)] * 2).tolist() == [number] * 2


def test_a_sparse_scalar_is_read_as_a_number() -> None:
    x, empty = scalar(2.0), scalar(None)
    assert repr(x) == "masked(2., layout=torch.sparse_coo)"
    assert repr(empty) == "masked(--, layout=torch.sparse_coo)"
    assert f"{x:.2f}" == "2.00"
    assert (x.item(), bool(x > 1), x.filled(7.0).item(), empty.filled(7.0).item()) == (2.0, True, 2.0, 7.0)
    assert (x.compressed().tolist(), empty.compressed().tolist()) == ([2.0], [])
    with pytest.raises(mg.errors.UnspecifiedValueError):
        empty.item()


def test_a_scalar_of_torch_adds_up_its_duplicates() -> None:
    twice = torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.int64), torch.tensor([1.0, 2.0]), ())
    leaf = twice.clone().requires_grad_()
    mg.sparse.coalesce(leaf, "mean").to_dense().backward()
    assert leaf.grad.to_dense().item() == 0.5  # what each of the two entries receives
    for t, expected in (
        (torch.tensor(3.0).to_sparse(), 3.0),
        (twice, 3.0),
        (torch.sparse_coo_tensor(()), None),
    ):
        assert mg.from_sparse(t).tolist() == expected
        assert mg.from_sparse(t).to_sparse_tensor().to_dense().item() == (expected or 0.0)


def test_a_flipped_scalar_has_memory_of_its_own() -> None:
    scalar = mg.masked(torch.tensor(2.0), torch.tensor(True)).to_sparse()
    flipped = scalar.flip(0)
    flipped.mul_(3)
    assert (scalar.filled(0.0).item(), flipped.filled(0.0).item()) == (2, 6)
