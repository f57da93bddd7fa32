"""Patterns that list the specified entries: their cost depends on the number of these, not on the shape.

The simplest of them is here: one row of coordinates per specified entry (COO), for any number of dimensions.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.patterns.pattern import Pattern, PatternFacts

__all__ = [
    "CoordinatePattern", "StoredPattern", "ravel_multi_index", "read_places", "unravel_index",
    "write_places",
]  # fmt: skip

T = TypeVar("T")


class StoredPattern(Pattern):
    """A pattern over some *sparse* dimensions; stored values may have further, *dense* dimensions after them."""

    __slots__ = ("_memory", "sizes")

    sizes: tuple[int, ...]
    _memory: dict[Hashable, Any]

    @abc.abstractmethod
    def coordinates(self) -> Tensor:
        """Integer tensor (s, n): the index of each of the n entries, in storage order."""

    def flattened(self, values: Tensor) -> Tensor:
        """Stored values as entries, (n, *dense), in the order of :meth:`coordinates`; possibly as stored."""
        return values

    def gathered(self, entries: Tensor) -> Tensor:
        """Entries (n, *dense) as stored values: the inverse of :meth:`flattened`."""
        return entries

    def dense_sizes(self, values: Tensor) -> tuple[int, ...]:
        """The sizes of the dense dimensions."""
        return tuple(values.shape[1:])

    def is_same(self, other: StoredPattern) -> bool:
        """Return whether both are the same object, or have the same tensor objects; reads no values."""
        if self is other or type(self) is not type(other):
            return self is other
        same = all(a is b for a, b in zip(self.tensors(), other.tensors(), strict=True))
        return same and self.facts() == other.facts()

    def remembered(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Result of ``compute`` for this pattern, cached: a pattern never changes.

        Neither copied nor stored with the pattern. Nothing is cached in traced graphs, for transformed tensors,
        or in inference mode, whose tensors cannot be used in a later backward pass.
        """
        if not can_read(self.tensors()[0]) or torch.is_inference_mode_enabled():
            return compute()
        try:
            memory = self._memory
        except AttributeError:
            memory = self._memory = {}
        if key not in memory:
            memory[key] = compute()
        return cast("T", memory[key])

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        kept = [n for n in names if n != "_memory" and not isinstance(getattr(type(self), n), property)]
        return None, {name: getattr(self, name) for name in kept}

    def shape(self, values: Tensor) -> torch.Size:
        """The full shape of a tensor with these values."""
        return torch.Size((*self.sizes, *self.dense_sizes(values)))

    @property
    def mask(self) -> Tensor:
        """One Boolean per position in the sparse dimensions."""
        coordinates = self.coordinates()
        mask = torch.zeros(self.sizes, dtype=torch.bool, device=coordinates.device)
        return write_places(mask, coordinates, torch.ones((), dtype=torch.bool, device=mask.device))


class CoordinatePattern(StoredPattern):
    """Coordinates (s, n) in row-major order, without duplicates; values (n, *dense)."""

    __slots__ = ("indices",)

    layout = torch.sparse_coo

    def __init__(self, indices: Tensor, sizes: tuple[int, ...]) -> None:
        self.indices, self.sizes = indices, sizes

    def tensors(self) -> tuple[Tensor, ...]:
        """The coordinates."""
        return (self.indices,)

    def facts(self) -> PatternFacts:
        """The sizes of the sparse dimensions."""
        return PatternFacts("sparse_coo", self.sizes)

    def coordinates(self) -> Tensor:
        """As stored."""
        return self.indices


def read_places(dense: Tensor, coordinates: Tensor) -> Tensor:
    """The entries (n, *dense) of a tensor at ``coordinates`` (s, n)."""
    if coordinates.shape[0]:
        return dense[tuple(coordinates)]
    return dense.expand(coordinates.shape[1], *dense.shape)  # PyTorch refuses empty indices


def write_places(dense: Tensor, coordinates: Tensor, entries: Tensor) -> Tensor:
    """A copy of a tensor with ``entries`` (n, *dense) at ``coordinates`` (s, n)."""
    if coordinates.shape[0]:
        return dense.index_put(tuple(coordinates), entries)
    return dense.unsqueeze(0).index_put((coordinates.new_zeros(coordinates.shape[1]),), entries).squeeze(0)


def ravel_multi_index(coordinates: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Row-major indices (n,) of ``coordinates`` (s, n)."""
    if math.prod(sizes) >= 2**63:
        raise ValueError(f"sizes {sizes} have {math.prod(sizes)} positions, more than int64 can hold")
    keys = torch.zeros(coordinates.shape[1], dtype=torch.int64, device=coordinates.device)
    for index, size in zip(coordinates, sizes, strict=True):
        keys = keys * size + index
    return keys


def unravel_index(keys: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Coordinates (s, n) of row-major indices (n,): the inverse of :func:`ravel_multi_index`."""
    rows: list[Tensor] = []
    for size in reversed(sizes):
        rows.insert(0, keys % max(size, 1))
        keys = torch.div(keys, max(size, 1), rounding_mode="floor")
    return torch.stack(rows) if rows else keys.new_zeros((0, keys.shape[0]))
