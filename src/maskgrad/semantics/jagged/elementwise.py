"""Elementwise operations on rows: with numbers, with what broadcasts, and with the sequences of other operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import aligned, attach, padded
from maskgrad.semantics.sparse.entries import SparseEntries

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["elementwise"]


def elementwise(operation: Operation) -> Callable[..., Any]:
    """The rule of an operation that leaves every entry to itself."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = [*args, *kwargs.values()] if kwargs else args
        pattern = _common(operands)
        if pattern is not None:
            rows: Any = [o.values if type(o) is SparseEntries else o for o in operands]
        else:
            found = aligned(operands)
            if found is None or any(isinstance(o, Entries) for o in found.operands):
                # among Boolean masks, or in a frame of another shape, what is specified is no prefix any more
                return operation.body(function, padded(args), {k: padded(v) for k, v in kwargs.items()})
            pattern, rows = found
        if kwargs:
            names = dict(zip(kwargs, rows[len(args) :], strict=True))
            result = function(*rows[: len(args)], **names)
        else:
            result = function(*rows)
        return attach(result, lambda values: SparseEntries(values, pattern))

    return body


def _common(operands: Any) -> JaggedPattern | None:
    """The pattern that is one and the same object in all operands but numbers: asked first, and without shapes."""
    pattern, ndim = None, 0
    for operand in operands:
        if type(operand) is SparseEntries:
            own = operand.pattern
            if type(own) is not JaggedPattern:
                return None
            if pattern is None:
                pattern, ndim = own, operand.values.ndim
            elif operand.values.ndim != ndim or not (own is pattern or _same_tensors(own, pattern)):
                return None
        elif isinstance(operand, Entries) or (isinstance(operand, Tensor) and operand.ndim):
            return None
    return pattern


def _same_tensors(a: JaggedPattern, b: JaggedPattern) -> bool:
    return a.at == b.at and a.offsets is b.offsets and a.index is b.index and a.frame is b.frame
