"""The pattern stored as one row of coordinates per specified entry: COO, for any number of dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Facts
from maskgrad.patterns.stored import StoredPattern

__all__ = ["CoordinatePattern"]


class CoordinatePattern(StoredPattern):
    """Coordinates (s, n) in row-major order, each place once; values (n, *dense)."""

    __slots__ = ("indices",)

    def __init__(self, indices: Tensor, sizes: tuple[int, ...]) -> None:
        self.indices, self.sizes = indices, sizes

    @property
    def layout(self) -> torch.layout:
        """``torch.sparse_coo``."""
        return torch.sparse_coo

    def tensors(self) -> tuple[Tensor, ...]:
        """The coordinates."""
        return (self.indices,)

    def facts(self) -> Facts:
        """The sizes of the sparse dimensions."""
        return Facts("sparse_coo", self.sizes)

    def rebuilt(self, tensors: tuple[Any, ...]) -> CoordinatePattern:
        """The same sizes around other coordinates."""
        return CoordinatePattern(tensors[0], self.sizes)

    def coordinates(self) -> Tensor:
        """As stored."""
        return self.indices
