"""Rules of operations for stored values, by name or by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.semantics.facts import Operation
from maskgrad.semantics.registry import OPERATIONS
from maskgrad.semantics.signatures import named
from maskgrad.semantics.stored import (
    contractions,
    conversion,
    indexing,
    joins,
    reductions,
    views,
)
from maskgrad.semantics.stored.elementwise import elementwise, prelu
from maskgrad.semantics.stored.losses import by_position

__all__ = ["rule_for"]

#: Properties of memory that a sparse layout does not have.
UNKNOWN_TO_STORED = frozenset({"stride", "storage_offset", "data_ptr"})


def _rule_for(operation: Operation) -> Callable[..., Any] | None:
    name, family = operation.name, operation.family
    if name in reductions.REDUCTIONS:
        return reductions.reduction(operation, *reductions.REDUCTIONS[name])
    if name in BY_NAME:
        return BY_NAME[name]
    if family == "elementwise":
        return elementwise
    if family == "metadata" and name not in UNKNOWN_TO_STORED:
        return conversion.ask(name)
    if family == "conversion":
        return conversion.convert
    if family == "differentiation":  # its rules accept every layout
        return operation.body
    if operation.by_position:
        return by_position(operation)
    return None


BY_NAME: dict[str, Callable[..., Any]] = {
    **reductions.NORMALIZED,
    **contractions.RULES,
    **joins.BETWEEN,
    **conversion.RULES,
    **indexing.PARTS,
    **{name: named(rule) for name, rule in (views.RULES | indexing.RULES | joins.RULES).items()},
    "prelu": prelu,
    # each entry is dropped or scaled independently
    **dict.fromkeys(("nn.functional.dropout", "nn.functional.alpha_dropout"), elementwise),
}

_KNOWN = {operation.name: _rule_for(operation) for operation in OPERATIONS}


def rule_for(operation: Operation) -> Callable[..., Any] | None:
    """The rule for stored values, or None."""
    return _KNOWN[operation.name]
