"""Concatenated sequences of different lengths: the layout ``torch.jagged``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.mode import TRACED, mode
from maskgrad.patterns.pattern import PatternFacts
from maskgrad.patterns.stored import StoredPattern, unravel_index

__all__ = ["JaggedPattern", "jagged_pattern", "same_lengths"]


class JaggedPattern(StoredPattern):
    """Sequence b is specified in its first positions; values (n, *features), one row per position.

    Attributes:
        offsets: (B + 1,), int64: sequence b has the rows ``offsets[b]:offsets[b + 1]``; B counts all batch dimensions.
        index: (n,), int64: the index b * T + t of each row, ascending.
        frame: Boolean (*batch, T) without memory, used for its shape only: traced graphs treat the sizes
            of tensors as variable, and those of plain integers as constant.
        at: positions of the batch dimensions and the ragged one in the full shape; the others are features. A
            single position if they are flattened into one dimension (B * T,), as in ``logits.view(-1, classes)``.
    """

    __slots__ = ("_at", "_memory", "_places", "frame", "index", "offsets")

    layout = torch.jagged

    def __init__(self, offsets: Tensor, index: Tensor, frame: Tensor, at: tuple[int, ...]) -> None:
        self.offsets, self.index, self.frame = offsets, index, frame
        self._at, self._places = at, " ".join(map(str, at))

    @property
    def at(self) -> tuple[int, ...]:
        """The positions; in a graph parsed from a string, which is constant.

        ``torch.compile(dynamic=True)`` treats integers in arguments as variable, and then ``dim in at`` is False.
        """
        if mode() in TRACED:
            return tuple(map(int, self._places.split()))
        return self._at

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The sizes of the batch and of the ragged dimension, in this order, or of the flattened dimension."""
        return (self.frame.numel(),) if self.is_flat else tuple(self.frame.shape)

    @property
    def is_flat(self) -> bool:
        """Return whether batch and ragged dimension are flattened."""
        return len(self.at) < self.frame.ndim

    @property
    def longest(self) -> int:
        """T, the size of the ragged dimension."""
        return self.frame.shape[-1]

    @property
    def is_canonical(self) -> bool:
        """Return whether batch and ragged dimension come first, in this order."""
        return self.at == tuple(range(len(self.at)))

    def tensors(self) -> tuple[Tensor, ...]:
        """Offsets, indices and frame."""
        return self.offsets, self.index, self.frame

    def facts(self) -> PatternFacts:
        """Positions of the batch dimensions and the ragged one; the frame has the sizes."""
        return PatternFacts("jagged", self.at)

    def moved(self, at: tuple[int, ...]) -> JaggedPattern:
        """The same sequences at other positions of the shape; always the same object."""
        if at == self.at:
            return self
        return self.remembered(("moved", at), lambda: JaggedPattern(self.offsets, self.index, self.frame, at))

    def canonical(self) -> JaggedPattern:
        """The same sequences with batch and ragged dimension first."""
        return self.moved(tuple(range(len(self.at))))

    def lengths(self) -> Tensor:
        """The length of each sequence, (B,)."""
        return self.remembered("lengths", self.offsets.diff)

    def sequences(self) -> Tensor:
        """The sequence to which each row belongs, (n,)."""
        return self.remembered(
            "sequences", lambda: torch.div(self.index, max(self.longest, 1), rounding_mode="floor")
        )

    def positions(self) -> Tensor:
        """The position of each row in its sequence, (n,)."""
        return self.remembered("positions", lambda: self.index % max(self.longest, 1))

    def coordinates(self) -> Tensor:
        """Batch indices and position of each row."""
        return self.remembered("coordinates", lambda: unravel_index(self.index, self.sizes))

    def shape(self, values: Tensor) -> torch.Size:
        """The full shape, with each dimension at its position."""
        if self.is_canonical and not self.is_flat:  # used often
            return self.frame.shape + values.shape[1:]
        sizes: list[int] = list(values.shape[1:])
        own = self.sizes
        for place in sorted(self.at):
            sizes.insert(place, own[self.at.index(place)])
        return torch.Size(sizes)

    @property
    def mask(self) -> Tensor:
        """One Boolean per sequence and position, (*batch, T) or (B * T,)."""
        positions = torch.arange(self.longest, device=self.offsets.device)
        return (positions < self.lengths().unsqueeze(-1)).reshape(self.sizes)

    def __repr__(self) -> str:
        return f"JaggedPattern(offsets={self.offsets}, sizes={self.sizes}, at={self.at})"


def jagged_pattern(
    offsets: Tensor, number: int, sizes: tuple[int, ...], at: tuple[int, ...] | None = None
) -> JaggedPattern:
    """Pattern of sequences whose rows, ``number`` in all, end at ``offsets`` (B + 1,), in a frame of ``sizes``."""
    frame = torch.ones((), dtype=torch.bool, device=offsets.device).expand(sizes)
    starts = torch.arange(math.prod(sizes[:-1]), device=offsets.device) * sizes[-1] - offsets[:-1]
    rows = torch.arange(number, device=offsets.device)
    index = rows + torch.repeat_interleave(starts, offsets.diff(), output_size=number)
    return JaggedPattern(offsets, index, frame, tuple(range(len(sizes))) if at is None else at)


def same_lengths(a: JaggedPattern, b: JaggedPattern) -> bool:
    """Return whether both are known to have sequences of the same lengths, at any positions of the shape."""
    if a is b or (a.offsets is b.offsets and a.index is b.index):
        return True
    return mode() not in TRACED and a.frame.shape == b.frame.shape and torch.equal(a.offsets, b.offsets)
