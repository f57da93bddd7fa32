"""The pattern stored line by line: CSR and BSR (lines are rows), CSC and BSC (lines are columns), batched or not."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.patterns.pattern import PatternFacts
from maskgrad.patterns.stored import StoredPattern, unravel_index

__all__ = ["BLOCKED", "BY_ROW", "TRANSPOSED", "CompressedPattern", "lines_of"]

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
#: Each compressed layout, and the one for the same memory with rows and columns exchanged.
TRANSPOSED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


def lines_of(pointers: Tensor, number: int) -> Tensor:
    """The line of each stored position, (*batch, number): from pointers (*batch, lines + 1)."""
    lines = pointers.shape[-1] - 1
    counts = pointers.diff(dim=-1)
    total = pointers[..., 0].numel() * number
    flat = torch.repeat_interleave(counts.reshape(-1).to(torch.int64), output_size=total)
    return (flat % max(lines, 1)).reshape(*pointers.shape[:-1], number)


class CompressedPattern(StoredPattern):
    """Pointers (*batch, lines + 1) and positions (*batch, n) in the line; values (*batch, n, *block, *dense).

    With a block size, lines and positions count blocks (height, width), of which every entry is specified.
    """

    __slots__ = ("blocksize", "layout", "pointers", "positions")

    def __init__(
        self,
        layout: torch.layout,
        pointers: Tensor,
        positions: Tensor,
        sizes: tuple[int, ...],
        blocksize: tuple[int, int] | None = None,
    ) -> None:
        self.layout, self.pointers, self.positions = layout, pointers, positions
        self.sizes, self.blocksize = sizes, blocksize

    def tensors(self) -> tuple[Tensor, ...]:
        """Pointers and positions."""
        return self.pointers, self.positions

    def facts(self) -> PatternFacts:
        """Layout, sizes and block size."""
        return PatternFacts(str(self.layout).removeprefix("torch."), self.sizes, self.blocksize)

    def transposed(self) -> CompressedPattern:
        """Rows and columns exchanged: the same memory, read the other way."""
        sizes = (*self.sizes[:-2], self.sizes[-1], self.sizes[-2])
        blocksize = None if self.blocksize is None else self.blocksize[::-1]
        return CompressedPattern(TRANSPOSED[self.layout], self.pointers, self.positions, sizes, blocksize)

    def coordinates(self) -> Tensor:
        """Batch, row and column of each entry; block after block."""
        number = self.positions.shape[-1]
        lines = lines_of(self.pointers, number).reshape(-1)
        positions = self.positions.reshape(-1)
        pair = (lines, positions) if self.layout in BY_ROW else (positions, lines)
        batch: list[Tensor] = []
        if len(self.sizes) > 2:
            ranges = [torch.arange(size, device=positions.device) for size in self.sizes[:-2]]
            grids = torch.meshgrid(*ranges, indexing="ij")
            batch = [grid.unsqueeze(-1).expand(*grid.shape, number).reshape(-1) for grid in grids]
        found = torch.stack([index.to(torch.int64) for index in (*batch, *pair)])
        if self.blocksize is None:
            return found
        height, width = self.blocksize
        inside = unravel_index(torch.arange(height * width, device=found.device), (height, width))
        rows, columns = found[-2:].unsqueeze(-1)
        places = torch.stack([rows * height + inside[0], columns * width + inside[1]])
        return torch.cat([found[:-2].repeat_interleave(height * width, 1), places.flatten(1)])

    @property
    def _counted(self) -> int:
        """Number of dimensions of the values that count entries."""
        return len(self.sizes) - (1 if self.blocksize is None else -1)

    def flattened(self, values: Tensor) -> Tensor:
        """Without batch dimensions and blocks."""
        return values if self._counted == 1 else values.flatten(0, self._counted - 1)

    def gathered(self, entries: Tensor) -> Tensor:
        """With batch dimensions and blocks."""
        return entries.reshape(*self.positions.shape, *(self.blocksize or ()), *entries.shape[1:])

    def dense_sizes(self, values: Tensor) -> tuple[int, ...]:
        """Sizes after the dimensions that count entries."""
        return tuple(values.shape[self._counted :])
