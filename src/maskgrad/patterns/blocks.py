"""The pattern stored block by block: BSR and BSC. Every entry of a stored block is specified."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.compressed import BY_ROW, LinePattern, batch_coordinates, lines_of
from maskgrad.patterns.pattern import Facts

__all__ = ["BlockPattern"]


class BlockPattern(LinePattern):
    """Pointers (*batch, block lines + 1), block positions (*batch, n); values (*batch, n, height, width, *dense)."""

    __slots__ = ("blocksize",)

    def __init__(
        self,
        layout: torch.layout,
        pointers: Tensor,
        positions: Tensor,
        blocksize: tuple[int, int],
        sizes: tuple[int, ...],
    ) -> None:
        self._layout, self.pointers, self.positions = layout, pointers, positions
        self.blocksize, self.sizes = blocksize, sizes

    def facts(self) -> Facts:
        """Layout, sizes and block size."""
        return Facts(str(self._layout).removeprefix("torch."), self.sizes, self.blocksize)

    def rebuilt(self, tensors: tuple[Any, ...]) -> BlockPattern:
        """The same facts around other index tensors."""
        return BlockPattern(self._layout, tensors[0], tensors[1], self.blocksize, self.sizes)

    def coordinates(self) -> Tensor:
        """Batch, row and column of each entry of each block."""
        number = self.positions.shape[-1]
        lines = lines_of(self.pointers, number).reshape(-1).to(torch.int64)
        positions = self.positions.reshape(-1).to(torch.int64)
        row, column = (lines, positions) if self._layout in BY_ROW else (positions, lines)
        height, width = self.blocksize
        i = torch.arange(height, device=row.device).reshape(1, height, 1)
        j = torch.arange(width, device=row.device).reshape(1, 1, width)
        whole = (row.shape[0], height, width)
        batch = batch_coordinates(self.sizes[:-2], number, row.device)
        parts = [
            *(index.reshape(-1, 1, 1).expand(whole) for index in batch),
            (row.reshape(-1, 1, 1) * height + i).expand(whole),
            (column.reshape(-1, 1, 1) * width + j).expand(whole),
        ]
        return torch.stack([part.reshape(-1) for part in parts])

    def spread(self, values: Tensor) -> Tensor:
        """One entry after the other."""
        return values.flatten(0, len(self.sizes))

    def gathered(self, entries: Tensor) -> Tensor:
        """Block after block."""
        return entries.reshape(*self.positions.shape, *self.blocksize, *entries.shape[1:])

    def dense_sizes(self, values: Tensor) -> tuple[int, ...]:
        """Everything behind the block."""
        return tuple(values.shape[len(self.sizes) + 1 :])
