"""Coordinates of what compressed tensors store: CSR and CSC entries, BSR and BSC blocks, batched or not.

Both functions return (s, n) indices and (n, *dense) values, s counting batch, row and column dimensions, in
the order of storage. A stored zero is an entry. Read through public accessors only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["read_blocks", "read_compressed"]

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)


def read_compressed(t: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Entries of a CSR or CSC tensor.

    Raises:
        ValueError: the compressed indices do not ascend from 0 to the number of stored values.
    """
    batch, slow, fast, values = _expanded(t, where, t.shape[: t.dim() - t.dense_dim() - 2])
    return torch.stack([*batch, *((slow, fast) if t.layout in _BY_ROW else (fast, slow))]), values


def read_blocks(t: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Entries of a BSR or BSC tensor, every entry of a stored block among them.

    Raises:
        ValueError: the compressed indices do not ascend from 0 to the number of stored blocks.
    """
    batch, slow, fast, values = _expanded(t, where, t.shape[: t.dim() - t.dense_dim() - 2])
    row, column = (slow, fast) if t.layout in _BY_ROW else (fast, slow)
    blocks, height, width = values.shape[:3]
    i = torch.arange(height, device=values.device).reshape(1, height, 1)
    j = torch.arange(width, device=values.device).reshape(1, 1, width)
    full = (blocks, height, width)
    spread = [
        *(b.reshape(-1, 1, 1).expand(full) for b in batch),
        (row.reshape(-1, 1, 1) * height + i).expand(full),
        (column.reshape(-1, 1, 1) * width + j).expand(full),
    ]
    return torch.stack([index.reshape(-1) for index in spread]), values.reshape(-1, *values.shape[3:])


def _expanded(t: Tensor, where: str, sizes: Sequence[int]) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Batch indices, the compressed index spelled out, the plain index, and the values, each with n in front."""
    if t.layout in _BY_ROW:
        pointer, plain = t.crow_indices(), t.col_indices()
    else:
        pointer, plain = t.ccol_indices(), t.row_indices()
    per_batch = plain.shape[-1]
    counts = pointer.diff(dim=-1)
    if bool((counts < 0).any() | (pointer[..., 0] != 0).any() | (pointer[..., -1] != per_batch).any()):
        raise ValueError(
            f"{where}: the compressed indices of a {t.layout} tensor must ascend from 0 to its {per_batch} stored "
            "values; build it with check_invariants=True to find the place"
        )
    counts = counts.to(torch.int64)
    lines = counts.shape[-1]
    number = torch.repeat_interleave(counts.reshape(-1), output_size=plain.numel())
    slow = number % max(lines, 1)
    sample = torch.div(number, max(lines, 1), rounding_mode="floor")
    batch: list[Tensor] = []
    for extent in reversed(sizes):
        batch.insert(0, sample % extent)
        sample = torch.div(sample, extent, rounding_mode="floor")
    values = t.values()
    return batch, slow, plain.reshape(-1).to(torch.int64), values.flatten(0, values.dim() - _trailing(t) - 1)


def _trailing(t: Tensor) -> int:
    """Dimensions of ``t.values()`` behind the one that counts stored entries or blocks."""
    return t.dense_dim() + (2 if t.layout in (torch.sparse_bsr, torch.sparse_bsc) else 0)
