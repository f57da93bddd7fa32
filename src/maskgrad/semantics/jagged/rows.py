"""Aligning jagged operands: one row per specified position; elementwise operations on rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels.invariant import in_pieces
from maskgrad.kernels.smallest import smallest
from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern, same_lengths
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.stored.elementwise import common_pattern
from maskgrad.semantics.stored.entries import StoredEntries, attach, densified, shape_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "Aligned", "Call", "Jagged", "aligned", "at_rows", "check_frames", "elementwise", "feature_dims",
    "from_padded", "in_frame", "is_jagged", "of_lengths", "of_sequences", "out_of_frame", "padded",
    "rows_at", "trailing",
]  # fmt: skip


if TYPE_CHECKING:

    class Jagged(StoredEntries):
        """Stored entries that are jagged (:func:`is_jagged`)."""

        pattern: JaggedPattern


def is_jagged(x: Any) -> TypeIs[Jagged]:
    """Return whether an operand is stored as sequences of different lengths."""
    return type(x) is StoredEntries and type(x.pattern) is JaggedPattern


def trailing(x: Any, count: int) -> TypeIs[Jagged]:
    """Return whether the last ``count`` dimensions are features."""
    return is_jagged(x) and max(x.pattern.at) < len(x.shape) - count


def feature_dims(x: Jagged) -> list[int]:
    """The dimensions of the whole shape that are features, in order: those of the values after the first."""
    at = x.pattern.at
    return [d for d in range(len(at) + x.values.ndim - 1) if d not in at]


class Call(NamedTuple):
    """A call with a jagged operand. Rules are tried in turn; one that does not apply returns None."""

    operation: Operation
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def bound(self, signature: str) -> dict[str, Any]:
        """The arguments by the names of a signature."""
        return bound(signature, self.args, self.kwargs)

    def first(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The first operand, and the other arguments as they were given."""
        if self.args:
            return self.args[0], self.args[1:], self.kwargs
        name = next(n for n in ("input", "self", "tensor") if n in self.kwargs)
        return self.kwargs[name], (), {k: v for k, v in self.kwargs.items() if k != name}

    def on_padded(self) -> Any:
        """Apply the rule for Boolean masks to the padded form, which is allocated."""
        named = {name: padded(value) for name, value in self.kwargs.items()}
        return self.operation.body(self.function, padded(self.args), named)


def padded(x: Any) -> Any:
    """The same entries with a Boolean mask; other arguments are unchanged, lists and tuples are searched."""
    if is_jagged(x):
        return densified(x)
    return type(x)([padded(part) for part in x]) if type(x) in (list, tuple) else x


def from_padded(values: Tensor, pattern: JaggedPattern) -> StoredEntries:
    """The rows of a tensor of the whole shape."""
    return StoredEntries(at_rows(values, pattern), pattern)


def in_frame(values: Tensor, at: Sequence[int]) -> Tensor:
    """Rows (n, *features) as a view of full rank: batch dimensions of size 1, and n in place of the ragged one.

    Functions of independent rows apply to it as to a padded batch, with the same arguments.
    """
    for _ in range(len(at) - 1):
        values = values.unsqueeze(0)
    order = tuple(range(len(at)))
    return values if tuple(at) == order else values.movedim(order, tuple(at))


def out_of_frame(values: Tensor, at: Sequence[int]) -> Tensor:
    """The rows of such a view."""
    order = tuple(range(len(at)))
    if tuple(at) != order:
        values = values.movedim(tuple(at), order)
    for _ in range(len(at) - 1):
        values = values.squeeze(0)
    return values


def at_rows(plain: Tensor, pattern: JaggedPattern) -> Tensor:
    """Values at each row of a tensor that broadcasts to the whole shape: (n or 1, *features)."""
    depth = len(pattern.at)
    plain = plain.movedim(pattern.at, tuple(range(depth)))
    sizes = plain.shape[:depth]
    varies = [size != 1 or full == 1 for size, full in zip(sizes, pattern.sizes, strict=True)]
    if all(size == 1 for size in sizes) and not all(varies):  # a frame of one position may have no row
        return plain.flatten(0, depth - 1)
    if pattern.is_flat:
        return plain.flatten(0, depth - 1).index_select(0, pattern.index)
    if not any(varies[:-1]):
        return plain.flatten(0, depth - 1).index_select(0, pattern.positions())
    if all(varies[:-1]) and sizes[-1] == 1:
        return plain.flatten(0, depth - 1).index_select(0, pattern.sequences())
    if not all(varies):
        plain = plain.expand(*pattern.frame.shape, *plain.shape[depth:])
    return plain.flatten(0, depth - 1).index_select(0, pattern.index)


class Aligned(NamedTuple):
    """Operands row by row, (n or 1, *features), plain or with a mask; scalars; and the pattern of the result."""

    pattern: JaggedPattern
    operands: list[Any]


def of_lengths(
    lengths: Tensor, sizes: tuple[int, ...], at: tuple[int, ...], number: int | None = None
) -> JaggedPattern:
    """Sequences of these lengths in a frame of ``sizes``. Reads the ``number`` of rows unless it is known."""
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return jagged_pattern(offsets, int(offsets[-1]) if number is None else number, sizes, at)


def _shared(a: JaggedPattern, b: JaggedPattern) -> JaggedPattern:
    """The sequences up to the shorter of each pair."""
    return of_lengths(torch.minimum(a.lengths(), b.lengths()), a.sizes, a.at)


def rows_at(offsets: Tensor, pattern: JaggedPattern) -> Tensor:
    """Index of the row at each position of ``pattern``, where sequence b begins at row ``offsets[b]``."""
    return offsets.index_select(0, pattern.sequences()) + pattern.positions()


def of_sequences(x: Jagged, which: Tensor, number: int | None = None) -> StoredEntries:
    """Some of the sequences, in any order, perhaps repeated, with ``number`` rows; one batch dimension."""
    pattern = x.pattern
    sizes = (which.shape[0], pattern.longest)
    chosen = of_lengths(pattern.lengths().index_select(0, which), sizes, pattern.at, number)
    rows = rows_at(pattern.offsets[:-1].index_select(0, which), chosen)
    return StoredEntries(x.values.index_select(0, rows), chosen)


def _with_statistic(pattern: JaggedPattern, operand: Entries, rank: int) -> tuple[JaggedPattern, Any]:
    """The sequences for which a masked operand is specified, if its mask is constant within sequences.

    Its values are returned then, else the operand.
    """
    mask = smallest(operand.mask)
    mask = mask[(None,) * (rank - mask.ndim)].movedim(pattern.at, tuple(range(len(pattern.at))))
    batch = pattern.frame.shape[:-1]
    if pattern.is_flat or mask.numel() != math.prod(mask.shape[: len(batch)]) or not can_read(mask):
        return pattern, operand
    if any(size not in (1, full) for size, full in zip(mask.shape, batch, strict=False)):
        return pattern, operand
    lengths = pattern.lengths()
    kept = torch.where(mask.reshape(mask.shape[: len(batch)]).expand(batch).reshape(-1), lengths, 0)
    if not torch.equal(kept, lengths):
        pattern = of_lengths(kept, pattern.sizes, pattern.at)
    return pattern, operand.values


def aligned(operands: Sequence[Any]) -> Aligned | None:
    """Operands that broadcast to a jagged result, row by row; None if the result is not jagged.

    Raises:
        ValueError: the numbers of sequences differ.
    """
    rank = max(len(shape_of(o)) for o in operands)
    leader = None
    for operand in operands:
        if is_jagged(operand):
            at = tuple([d + rank - len(operand.shape) for d in operand.pattern.at])
            own = operand.pattern.moved(at)
            if leader is None:
                leader = own
            elif own.at != leader.at:
                return None
            elif own.frame.shape != leader.frame.shape:
                check_frames(leader, own)
                return None
            elif not same_lengths(leader, own):
                if leader.is_flat or not can_read(own.offsets):
                    return None
                leader = _shared(leader, own)
    assert leader is not None
    operands = list(operands)
    for i, operand in enumerate(operands):
        if isinstance(operand, Entries) and operand.mask.ndim:
            leader, operands[i] = _with_statistic(leader, operand, rank)
    found: list[Any] = []
    for operand in operands:
        if is_jagged(operand):
            values = operand.values
            if operand.pattern.index.shape[0] != leader.index.shape[0]:
                values = values.index_select(0, rows_at(operand.pattern.offsets, leader))
            missing = rank - len(operand.shape)
            found.append(values[(slice(None), *(None,) * missing)] if missing else values)
        elif isinstance(operand, (Tensor, Entries)) and len(shape_of(operand)):
            parts: list[Tensor] = list(operand) if isinstance(operand, Entries) else [operand]
            parts = [part[(None,) * (rank - part.ndim)] for part in parts]
            for place, size in zip(leader.at, leader.sizes, strict=True):
                if parts[0].shape[place] not in (1, size):
                    return None
            parts = [at_rows(part, leader) for part in parts]
            found.append(Entries(*parts) if isinstance(operand, Entries) else parts[0])
        else:
            found.append(operand)
    return Aligned(leader, found)


def check_frames(a: JaggedPattern, b: JaggedPattern) -> None:
    """Raise a ValueError unless the numbers of sequences broadcast."""
    if a.is_flat or a.frame.ndim != b.frame.ndim:
        return
    for one, other in zip(a.frame.shape[:-1], b.frame.shape[:-1], strict=True):
        if one != other and 1 not in (one, other):
            raise ValueError(
                f"jagged operands need the same number of sequences, found {tuple(a.frame.shape[:-1])} and "
                f"{tuple(b.frame.shape[:-1])}; select matching sequences first, as in x[indices]"
            )


def elementwise(operation: Operation) -> Callable[..., Any]:
    """The rule of an elementwise operation."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = [*args, *kwargs.values()] if kwargs else args
        pattern: Any = common_pattern(operands)
        if type(pattern) is JaggedPattern:
            rows: Any = [o.values if type(o) is StoredEntries else o for o in operands]
        else:
            found = aligned(operands)
            if found is None or any(isinstance(o, Entries) for o in found.operands):
                # among Boolean masks, or in a frame of another shape, the specified entries are no longer prefixes
                return operation.body(function, padded(args), {k: padded(v) for k, v in kwargs.items()})
            pattern, rows = found
        if kwargs:
            names = dict(zip(kwargs, rows[len(args) :], strict=True))
            result = in_pieces(function, *rows[: len(args)], **names)
        else:
            result = in_pieces(function, *rows)
        return attach(result, lambda values: StoredEntries(values, pattern))

    return body
