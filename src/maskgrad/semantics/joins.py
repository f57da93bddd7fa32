"""Joins: values and pattern are put together alike; plain tensors count as fully specified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskgrad.semantics.entries import Entries, mask_of
from maskgrad.semantics.facts import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS", "join"]


def join(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Apply the function that was called to the values and to the masks of the sequence."""
    named = dict(kwargs)
    parts, *rest = args if args else (named.pop("tensors"),)
    values = [part.values if isinstance(part, Entries) else part for part in parts]
    return Entries(
        function(values, *rest, **named), function([mask_of(part) for part in parts], *rest, **named)
    )


def block_diag(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Blocks, each an argument of its own; the zeros around them are made here, hence specified."""
    values = function(*[part.values if isinstance(part, Entries) else part for part in args])
    # joined as holes: what comes from no block is none
    return Entries(values, function(*[mask_of(part).logical_not() for part in args]).logical_not())


JOINS = (
    "cat concat concatenate",
    "stack",
    "hstack",
    "vstack row_stack",
    "dstack",
    "column_stack",
    "block_diag",
)

OPERATIONS: tuple[Operation, ...] = tuple(
    record(
        names,
        "joins",
        block_diag if names == "block_diag" else join,
        "joined like the values",
        "split back to the parts",
    )
    for names in JOINS
)
