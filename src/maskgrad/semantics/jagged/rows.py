"""Jagged operands side by side: one row for each position that is specified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.patterns.eager import can_read_values
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern, same_lengths
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.sparse.entries import SparseEntries, densified, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import TypeIs

__all__ = [
    "Aligned",
    "Jagged",
    "aligned",
    "at_rows",
    "attach",
    "check_frames",
    "everywhere",
    "feature_dims",
    "from_padded",
    "in_frame",
    "is_jagged",
    "out_of_frame",
    "padded",
    "shared_pattern",
]


if TYPE_CHECKING:

    class Jagged(SparseEntries):
        """Stored entries of which :func:`is_jagged` is true."""

        pattern: JaggedPattern


def is_jagged(x: Any) -> TypeIs[Jagged]:
    """Whether an operand is stored as sequences of different lengths."""
    return type(x) is SparseEntries and type(x.pattern) is JaggedPattern


def feature_dims(x: Jagged) -> list[int]:
    """The dimensions of the whole shape that are features, in order: those of the values behind the first."""
    at = x.pattern.at
    return [d for d in range(len(at) + x.values.ndim - 1) if d not in at]


def everywhere(values: Tensor) -> Entries:
    """Values of which all are specified; the mask takes no memory."""
    return Entries(values, torch.ones((), dtype=torch.bool, device=values.device).expand(values.shape))


def padded(x: Any) -> Any:
    """The same entries with a Boolean mask; what is not jagged stays as it is, sequences are looked into."""
    if is_jagged(x):
        return densified(x)
    return type(x)([padded(part) for part in x]) if type(x) in (list, tuple) else x


def from_padded(values: Tensor, pattern: JaggedPattern) -> SparseEntries:
    """The rows of a tensor of the whole shape."""
    return SparseEntries(at_rows(values, pattern), pattern)


def in_frame(values: Tensor, at: Sequence[int]) -> Tensor:
    """Rows (n, *features) as a view of full rank: batch dimensions of size 1, and n in place of the ragged one.

    What leaves every row to itself can be applied to it as to a padded batch, with the very same arguments.
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
    """Where a row is, what a tensor has there that broadcasts to the whole shape: (n or 1, *features)."""
    depth = len(pattern.at)
    plain = plain.movedim(pattern.at, tuple(range(depth)))
    sizes = plain.shape[:depth]
    varies = [size != 1 or full == 1 for size, full in zip(sizes, pattern.sizes, strict=True)]
    if all(size == 1 for size in sizes) and not all(varies):  # in a frame of one position there may be no row
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
    """Operands of an elementwise operation, row by row.

    Attributes:
        pattern: where the rows are in the result.
        operands: rows (n or 1, *features), plain or with a mask of them, and numbers.
    """

    pattern: JaggedPattern
    operands: list[Any]


def shared_pattern(a: JaggedPattern, b: JaggedPattern) -> JaggedPattern:
    """The sequences up to the end of the shorter of each pair; the same object as the last time."""
    return a.remembered_beside("shared", b, lambda: _shorter(a, b))


def _shorter(a: JaggedPattern, b: JaggedPattern) -> JaggedPattern:
    lengths = torch.minimum(a.lengths(), b.lengths())
    return of_lengths(lengths, a)


def of_lengths(lengths: Tensor, model: JaggedPattern) -> JaggedPattern:
    """Sequences of other lengths in the frame of a model. Their number of rows is read."""
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return jagged_pattern(offsets, int(offsets[-1]), model.sizes, model.at)


def rows_in(pattern: JaggedPattern, shorter: JaggedPattern) -> Tensor:
    """The rows of ``pattern`` at the places of ``shorter``, which has no others."""
    return pattern.offsets.index_select(0, shorter.sequences()) + shorter.positions()


def aligned(operands: Sequence[Any], rank: int | None = None) -> Aligned | None:
    """Operands that broadcast to a jagged result, row by row; None if the result is not jagged.

    Raises:
        ValueError: the numbers of sequences differ.
    """
    rank = max(len(shape_of(o)) for o in operands) if rank is None else rank
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
                if leader.is_flat or not can_read_values(own.offsets):
                    return None
                leader = shared_pattern(leader, own)
    assert leader is not None
    found: list[Any] = []
    for operand in operands:
        if is_jagged(operand):
            values = operand.values
            if operand.pattern.index.shape[0] != leader.index.shape[0]:
                values = values.index_select(0, rows_in(operand.pattern, leader))
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
    """Raise unless the numbers of sequences broadcast."""
    if a.is_flat or a.frame.ndim != b.frame.ndim:
        return
    for one, other in zip(a.frame.shape[:-1], b.frame.shape[:-1], strict=True):
        if one != other and 1 not in (one, other):
            raise ValueError(
                f"jagged operands need the same number of sequences, found {tuple(a.frame.shape[:-1])} and "
                f"{tuple(b.frame.shape[:-1])}; choose those that belong together, as in x[indices]"
            )


def attach(result: Any, wrap: Callable[[Tensor], Any]) -> Any:
    """One result, or each of several, with its pattern."""
    if isinstance(result, Tensor):
        return wrap(result)
    if isinstance(result, (tuple, list)):
        parts = [attach(part, wrap) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    return result
