"""One gradient in every kind of storage, for tests of what reads gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, masked

NAN = float("nan")


def coo(indices: object, values: object, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A COO tensor whose indices are believed, as torch does."""
    return torch.sparse_coo_tensor(
        torch.as_tensor(indices), torch.as_tensor(values, dtype=dtype), size, check_invariants=False
    )


def duplicated(dense: Tensor) -> Tensor:
    """``dense`` (2-D) as an unmerged COO tensor: each entry stored as two that add up to it, out of order."""
    t = dense.to_sparse()
    indices = t.indices().flip(1)
    values = t.values().flip(0)
    return torch.sparse_coo_tensor(
        indices.repeat(1, 2),
        torch.cat([values - 1, torch.ones_like(values)]),
        dense.shape,
        check_invariants=True,
    )


def hidden(dense: Tensor) -> MaskedTensor:
    """The nonzero entries of ``dense``, NaN everywhere else."""
    return masked(torch.where(dense != 0, dense, NAN), dense != 0)


# The specified entries are the nonzero ones of a 2-D tensor with even sizes; blocks (1, 2) may bring stored
# zeros.
KINDS: dict[str, Callable[[Tensor], Tensor | MaskedTensor]] = {
    "coo": Tensor.to_sparse,
    "coo with duplicates": duplicated,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda d: d.to_sparse_bsr((1, 2)),
    "bsc": lambda d: d.to_sparse_bsc((1, 2)),
    "masked": hidden,
}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
