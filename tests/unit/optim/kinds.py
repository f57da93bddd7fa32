"""One gradient in every kind of storage, for tests of what reads gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import MaskedTensor, masked

NAN = float("nan")


def coo(indices: object, values: object, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A COO tensor whose indices are believed, as torch does."""
    return torch.sparse_coo_tensor(
        torch.as_tensor(indices), torch.as_tensor(values, dtype=dtype), size, check_invariants=False
    )


def duplicated(dense: Tensor) -> Tensor:
    """``dense`` as an unmerged COO tensor: each entry stored as two that add up to it, out of order."""
    t = dense.to_sparse()
    indices, values = t.indices().flip(1), t.values().flip(0)
    both = torch.cat([values - 1, torch.ones_like(values)])
    return torch.sparse_coo_tensor(indices.repeat(1, 2), both, dense.shape, check_invariants=True)


def rows_twice(dense: Tensor) -> Tensor:
    """Rows that are not 0, each as two that add up to it, out of order."""
    t = dense.to_sparse(1)
    halves = t.values().flip(0).div(2).repeat(2, *[1] * (dense.dim() - 1))
    return torch.sparse_coo_tensor(
        t.indices().flip(1).repeat(1, 2), halves, dense.shape, check_invariants=True
    )


def hidden(dense: Tensor) -> MaskedTensor:
    """The nonzero entries of ``dense``, NaN everywhere else."""
    return masked(torch.where(dense != 0, dense, NAN), dense != 0)


def whole(dense: Tensor) -> Tensor:
    """A tensor without sparse dimensions, which lists the parameter twice."""
    values = torch.stack([dense - 1, torch.ones_like(dense)])
    return torch.sparse_coo_tensor(
        torch.empty(0, 2, dtype=torch.int64), values, dense.shape, check_invariants=True
    )


# The specified entries are the nonzero ones of a 2-D tensor with even sizes; blocks (1, 2) may bring stored
# zeros.
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "coo": Tensor.to_sparse,
    "coo with duplicates": duplicated,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda d: d.to_sparse_bsr((1, 2)),
    "bsc": lambda d: d.to_sparse_bsc((1, 2)),
    "masked": hidden,
}
#: Those of MaskedTensors that are stored, too.
MASKED: dict[str, Callable[[Tensor], Any]] = {
    "masked": hidden,
    "masked coo": lambda d: hidden(d).to_sparse(),
    "masked csr": lambda d: hidden(d).to_sparse(torch.sparse_csr),
    "masked csc": lambda d: hidden(d).to_sparse(torch.sparse_csc),
    "masked bsr": lambda d: mg.from_sparse(d.to_sparse_bsr((1, 2))),
}
#: Whole rows are specified.
BY_ROWS: dict[str, Callable[[Tensor], Any]] = {"rows": lambda d: d.to_sparse(1), "rows twice": rows_twice}
#: Nothing is left out.
FULL: dict[str, Callable[[Tensor], Any]] = {
    **KINDS, **MASKED, **BY_ROWS, "dense": Tensor.clone, "whole": whole,
}  # fmt: skip

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def specified(gradient: Any) -> Tensor:
    """Which entries a gradient specifies."""
    if isinstance(gradient, MaskedTensor):
        return gradient.mask
    if gradient.layout is torch.strided:
        return torch.ones_like(gradient, dtype=torch.bool)
    return mg.from_sparse(gradient.detach()).mask


def dense_of(gradient: Any) -> Tensor:
    """The numbers of a gradient, 0 where it has none."""
    dense: Tensor = gradient.filled(0) if isinstance(gradient, MaskedTensor) else gradient.to_dense()
    return dense
