"""The pattern stored line by line: CSR (lines are rows) and CSC (lines are columns), batched or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Facts
from maskgrad.patterns.stored import StoredPattern

__all__ = ["CompressedPattern", "LinePattern", "lines_of"]

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)


def lines_of(pointers: Tensor, number: int) -> Tensor:
    """The line of each stored position, (*batch, number): pointers (*batch, lines + 1) spelled out."""
    lines = pointers.shape[-1] - 1
    counts = pointers.diff(dim=-1)
    total = pointers[..., 0].numel() * number
    flat = torch.repeat_interleave(counts.reshape(-1).to(torch.int64), output_size=total)
    return (flat % max(lines, 1)).reshape(*pointers.shape[:-1], number)


def batch_coordinates(sizes: tuple[int, ...], number: int, device: torch.device) -> list[Tensor]:
    """The coordinates of the batch dimensions, each (prod(sizes) * number,)."""
    if not sizes:
        return []
    grids = torch.meshgrid(*(torch.arange(size, device=device) for size in sizes), indexing="ij")
    return [grid.unsqueeze(-1).expand(*sizes, number).reshape(-1) for grid in grids]


class LinePattern(StoredPattern):
    """What patterns share that are stored line by line: pointers (*batch, lines + 1) and positions (*batch, n)."""

    __slots__ = ("_layout", "pointers", "positions")

    _layout: torch.layout
    pointers: Tensor
    positions: Tensor

    @property
    def layout(self) -> torch.layout:
        """By rows or by columns, with or without blocks."""
        return self._layout

    def tensors(self) -> tuple[Tensor, ...]:
        """Pointers and positions."""
        return self.pointers, self.positions


class CompressedPattern(LinePattern):
    """CSR and CSC: positions in the line; values (*batch, n, *dense)."""

    __slots__ = ()

    def __init__(
        self, layout: torch.layout, pointers: Tensor, positions: Tensor, sizes: tuple[int, ...]
    ) -> None:
        self._layout, self.pointers, self.positions, self.sizes = layout, pointers, positions, sizes

    def facts(self) -> Facts:
        """Layout and sizes."""
        return Facts(str(self._layout).removeprefix("torch."), self.sizes)

    def rebuilt(self, tensors: tuple[Any, ...]) -> CompressedPattern:
        """The same layout and sizes around other index tensors."""
        return CompressedPattern(self._layout, tensors[0], tensors[1], self.sizes)

    def coordinates(self) -> Tensor:
        """Batch, row and column of each entry."""
        number = self.positions.shape[-1]
        lines = lines_of(self.pointers, number).reshape(-1)
        positions = self.positions.reshape(-1)
        pair = (lines, positions) if self._layout in BY_ROW else (positions, lines)
        batch = batch_coordinates(self.sizes[:-2], number, positions.device)
        return torch.stack([index.to(torch.int64) for index in (*batch, *pair)])

    def spread(self, values: Tensor) -> Tensor:
        """Without batch dimensions."""
        batch = len(self.sizes) - 2
        return values.flatten(0, batch) if batch else values

    def gathered(self, entries: Tensor) -> Tensor:
        """With batch dimensions."""
        return entries.reshape(*self.positions.shape, *entries.shape[1:])

    def dense_sizes(self, values: Tensor) -> tuple[int, ...]:
        """Everything behind the dimension that counts stored entries."""
        return tuple(values.shape[len(self.sizes) - 1 :])
