"""Jagged operands padded to different sizes: the padded size is no part of the meaning of a ragged batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.mode import TRACED, mode
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.jagged.rows import is_jagged
from maskgrad.semantics.stored.entries import StoredEntries

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["common_sequences", "in_one_frame"]

#: Joins, by the dimension along which they join: None if it is an argument; -1 if positions are joined one by one.
JOINED: dict[str, int | None] = {
    "cat": None,
    "vstack": 0,
    **dict.fromkeys(("hstack", "column_stack"), 1),
    "dstack": 2,
    **dict.fromkeys(("stack", "where"), -1),
}

#: Families whose operands are combined position by position: lengths must agree where sizes do not; and operations.
COMPARED = frozenset(("elementwise", "losses"))
COMPARED_TOO = frozenset(("max", "min", "masked_fill"))
#: Combined by position in some calls only: where lengths agree, sizes are made equal.
BY_POSITION = frozenset((
    "gather", "take_along_dim", "masked_select", "__getitem__", "copy_", "nn.functional.cosine_similarity",
    "nn.functional.linear_cross_entropy", "nn.functional.pairwise_distance",
))  # fmt: skip

Body = Callable[..., Any]


def in_one_frame(operation: Operation, rule: Body) -> Body:
    """The rule with jagged operands brought to one padded size, for operations that combine or join positions."""
    name = operation.name
    compared = operation.family in COMPARED or name in COMPARED_TOO
    # times and labels are two ragged dimensions; a table of classes is none of positions
    compared = compared and name not in ("nn.functional.ctc_loss", "nn.functional.linear_cross_entropy")
    if not (compared or name in JOINED or name in BY_POSITION):
        return rule

    def body(function: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = tuple(_jagged((*args, *kwargs.values())))
        sizes = {x.pattern.longest for x in operands}
        repeated = name == "where" or name not in JOINED  # a size of 1 is repeated, as everywhere
        if len(sizes) < 2 or (repeated and 1 in sizes):
            return rule(function, args, kwargs)
        if name in JOINED:
            longest = None if _one_behind_the_other(name, operands[0], args, kwargs) else max(sizes)
            change = None if longest is None else lambda pattern: padded_to(pattern, longest)
        else:
            first = _agreeing(operation, operands, compared)
            change = None if first is None else lambda pattern: first.moved(pattern.at)
        if change is not None:
            args, kwargs = _changed(args, change), {k: _changed(v, change) for k, v in kwargs.items()}
        return rule(function, args, kwargs)

    return body


def _jagged(arguments: Any) -> Iterator[Jagged]:
    for argument in arguments:
        if is_jagged(argument):
            yield argument
        elif type(argument) in (list, tuple):
            yield from _jagged(argument)


def _changed(argument: Any, change: Callable[[JaggedPattern], JaggedPattern]) -> Any:
    if is_jagged(argument):
        return StoredEntries(argument.values, change(argument.pattern))
    if type(argument) in (list, tuple):
        return type(argument)([_changed(part, change) for part in argument])
    return argument


def padded_to(pattern: JaggedPattern, longest: int) -> JaggedPattern:
    """The same sequences in a frame of another size."""
    if pattern.longest == longest:
        return pattern
    sizes, number = (*pattern.frame.shape[:-1], longest), pattern.index.shape[0]
    return pattern.remembered(
        ("padded to", longest), lambda: jagged_pattern(pattern.offsets, number, sizes, pattern.at)
    )


def _one_behind_the_other(name: str, first: Jagged, args: Any, kwargs: Any) -> bool:
    """Return whether operands are joined along the ragged dimension."""
    rank, dim = len(first.shape), JOINED[name]
    if dim is None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if dim == -1 and name != "cat":
        return False
    return not isinstance(dim, int) or not -rank <= dim < rank or as_dim(dim, rank) == first.pattern.at[-1]


def _agreeing(operation: Operation, operands: tuple[Jagged, ...], compared: bool) -> JaggedPattern | None:
    """The sequences of the first operand, if the lengths of all agree."""
    if mode() in TRACED:
        return None
    ranks = [len(x.shape) for x in operands]
    longer = [x for x in operands if len(x.shape) > min(ranks)]
    # dimensions are aligned from the last one, except of losses, where one of classes may be missing
    if longer and (operation.family != "losses" or any(x.pattern.at[-1] == 1 for x in longer)):
        return None
    return common_sequences([x.pattern for x in operands], operation.name if compared else "")


def common_sequences(patterns: Sequence[JaggedPattern], name: str) -> JaggedPattern | None:
    """The first pattern, if all have the same sequences, padded to whatever sizes; else None.

    Raises:
        ValueError: lengths and sizes differ. Not raised without a ``name``.
    """
    first, *others = patterns
    for other in others:
        if other.frame.shape[:-1] != first.frame.shape[:-1]:
            return None
        if not (first.offsets is other.offsets or torch.equal(first.offsets, other.offsets)):
            if name and first.longest != other.longest:
                raise ValueError(_differing(name, first, other))
            return None
    return first


def _differing(name: str, a: JaggedPattern, b: JaggedPattern) -> str:
    one, other, size = a.lengths(), b.lengths(), min(a.longest, b.longest)
    at = int((one != other).nonzero()[0])
    return (
        f"{name} needs sequences of the same lengths: sequence {at} has {int(one[at])} positions in one operand and "
        f"{int(other[at])} in the other. Compare x.lengths(); for the positions that both have, cut them to one size, "
        f"as in x[:, :{size}] and y[:, :{size}]"
    )
