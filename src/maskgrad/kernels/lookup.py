"""Rows of a table, one for each index: which body runs."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import lookup as reference
from maskgrad.kernels.selection import runs_compiled

__all__ = ["KERNELS", "lookup_pays", "lookup_rows"]


def lookup_pays(table: Tensor, indices: Tensor) -> bool:
    """Whether the compiled body runs, and is worth its start; it does not record a gradient."""
    looked_up = table.detach().new_empty(()).expand(indices.numel(), *table.shape[1:])
    return (
        indices.dtype in (torch.int32, torch.int64)
        and table.is_contiguous()
        and runs_compiled("lookup_rows", looked_up, table, indices)
    )


def lookup_rows(table: Tensor, indices: Tensor) -> Tensor:
    """``table[indices]`` for ``indices`` (n,); an index outside the table is an IndexError. Records no gradient."""
    if lookup_pays(table, indices):
        return torch.ops.maskgrad.lookup_rows(table, indices)  # type: ignore[no-any-return]
    return reference.lookup_rows(table, indices)


def _fake(table: Tensor, indices: Tensor) -> Tensor:
    return table.new_empty((indices.shape[0], *table.shape[1:]))


# Measured on 2 cores with the gradient and without the step, in milliseconds, F.embedding / compiled: 65,536 rows of 64
# 1.3 / 2.0, 262,144 rows 17 / 7. From 32 MiB on, C's allocator returns memory to the system each time; below, what
# PyTorch writes into has pages already.
KERNELS = (
    Kernel(
        "lookup_rows", "lookup", "(Tensor table, Tensor indices) -> Tensor", FLOATS, 8_388_608,
        "rows of a table, one for each index", fake=_fake,
    ),
)  # fmt: skip
