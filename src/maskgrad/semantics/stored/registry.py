"""Rules of operations for stored values, by name or by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.semantics.facts import Operation
from maskgrad.semantics.registry import OPERATIONS
from maskgrad.semantics.stored import (
    contractions,
    conversion,
    indexing,
    joins,
    norms,
    reductions,
    views,
)
from maskgrad.semantics.stored.elementwise import elementwise, prelu
from maskgrad.semantics.stored.losses import by_position

__all__ = ["rule_for"]

#: Properties of memory that a sparse layout does not have.
UNKNOWN_TO_STORED = frozenset({"stride", "storage_offset", "data_ptr"})

#: Other names of the same arguments in torch's functions.
SYNONYMS = {"axis": "dim", "axis0": "dim0", "axis1": "dim1", "self": "input"}


def _rule_for(operation: Operation) -> Callable[..., Any] | None:
    name, family = operation.name, operation.family
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


def _given(args: tuple[Any, ...], options: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """The arguments by position; the first may have a name."""
    return args or (options.pop(next(name for name in names if name in options)),)


def _first_positional(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body from a rule whose first argument has no name."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
        return rule(*_given(args, options, "input", "tensors"), **options)

    return body


def _asking(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body from a rule that calls the function itself, with its own argument names."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options = dict(kwargs)
        return rule(function, *_given(args, options, "input", "self"), **options)

    return body


#: Reductions, group by group.
REDUCTIONS = reductions.RULES | norms.RULES

BY_NAME: dict[str, Callable[..., Any]] = {
    **REDUCTIONS,
    **norms.NORMALIZED,
    **contractions.RULES,
    **joins.BETWEEN,
    **conversion.RULES,
    **{name: _first_positional(rule) for name, rule in (views.RULES | indexing.RULES | joins.RULES).items()},
    **{name: _asking(rule) for name, rule in views.BY_SHAPE.items()},
    "prelu": prelu,
    # each entry is dropped or scaled independently
    **dict.fromkeys(("nn.functional.dropout", "nn.functional.alpha_dropout"), elementwise),
}

_KNOWN = {operation.name: _rule_for(operation) for operation in OPERATIONS}


def rule_for(operation: Operation) -> Callable[..., Any] | None:
    """The rule for stored values, or None."""
    return _KNOWN[operation.name]
