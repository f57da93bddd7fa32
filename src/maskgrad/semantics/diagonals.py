"""Triangles and diagonals: the zeros that these operations create are specified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import record
from maskgrad.semantics.plain_arguments import plain_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS"]


def among_zeros(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the function to the values, and to the holes: where it creates a zero, there is no hole."""
    named = dict(kwargs)
    x, *others = args if args else (named.pop("input"),)
    rest, named = plain_arguments(others, named)
    if not isinstance(x, Entries):
        return function(x, *rest, **named)
    return Entries(
        function(x.values, *rest, **named), function(x.mask.logical_not(), *rest, **named).logical_not()
    )


PATTERN = "moves with the values; zeros that are created are specified"
GRADIENT = "moves back with the values; none to created zeros"

OPERATIONS: tuple[Operation, ...] = tuple(
    record(name, "views", among_zeros, PATTERN, GRADIENT)
    for name in ("tril", "triu", "diag", "diag_embed", "diagflat")
)
