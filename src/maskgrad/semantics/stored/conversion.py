"""Conversions of stored values, their properties, and the gradients passed to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns import StoredPattern
from maskgrad.patterns.algebra import equal
from maskgrad.patterns.conversion import pattern_of_facts
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.patterns.stored import read_places
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import at_rows
from maskgrad.semantics.signatures import plain_arguments
from maskgrad.semantics.stored.elementwise import common_pattern, lookup
from maskgrad.semantics.stored.entries import (
    StoredEntries,
    densified,
    exploded,
    flat,
    is_masked,
    shape_of,
)

__all__ = ["RULES", "ask", "convert", "cotangent"]


def convert(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change dtype or device of the values; the pattern moves to the same device; memory formats have no meaning."""
    x, *rest = args
    options = {name: value for name, value in kwargs.items() if name != "memory_format"}
    values = function(_bare(x), *map(_bare, rest), **options)
    if isinstance(x, Entries):  # x.to(stored): only dtype and device of the other are used
        return Entries(values, x.mask.to(values.device))
    return (
        _at_device(values, x.pattern)
        if isinstance(x, StoredEntries) and isinstance(values, Tensor)
        else values
    )


def _bare(argument: Any) -> Any:
    return argument.values if is_masked(argument) else argument


def _at_device(values: Tensor, pattern: StoredPattern) -> StoredEntries:
    if values.device != pattern.tensors()[0].device:
        moved = tuple([t.to(values.device) for t in pattern.tensors()])
        pattern = pattern_of_facts(pattern.facts(), moved)  # type: ignore[assignment]
    return StoredEntries(values, pattern)


def _of_values(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A rule that changes the values; patterns never change, so they are shared."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoredEntries:
        x = args[0] if args else kwargs["input"]
        return StoredEntries(change(x.values), x.pattern)

    return body


def _like(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoredEntries:
    """``ones_like`` and similar functions: new values in the same pattern."""
    x, *rest = args or (kwargs["input"],)
    plain, options = plain_arguments(
        rest, {k: v for k, v in kwargs.items() if k not in ("input", "memory_format")}
    )
    return _at_device(function(x.values, *plain, **options), x.pattern)


def _copy(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoredEntries:
    """``x.copy_(source)`` from the same layout; into existing memory if the pattern is the same."""
    x, source = args[0], args[1] if len(args) > 1 else kwargs["src"]
    both = [part for part in (x, source) if isinstance(part, StoredEntries)]
    if len(both) < 2 or x.pattern.facts() != source.pattern.facts():
        target, found = (
            f"{part.pattern.layout}, {tuple(part.shape)}"
            if isinstance(part, StoredEntries)
            else "a Boolean mask or none"
            for part in (x, source)
        )
        raise TypeError(
            f"copy_ between MaskedTensors needs one layout and shape; the target has {target}, the source {found}; "
            "convert the source first: source.to_dense(), source.to_sparse(), …"
        )
    values = source.values.to(x.values)
    return _at_device(values, x.pattern if equal(x.pattern, source.pattern) else source.pattern)


def _same_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(shape_of(args[0]) == shape_of(args[1] if len(args) > 1 else kwargs["other"]))


def _size(shape: torch.Size, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return shape if dim is None else shape[dim]


#: Properties known without the values: of the entries and the arguments.
ANSWERS: dict[str, Callable[[StoredEntries, tuple[Any, ...], dict[str, Any]], Any]] = {
    "size": lambda x, args, kwargs: _size(x.shape, args, kwargs),
    **dict.fromkeys(("dim", "ndimension"), lambda x, *_: len(x.shape)),
    **dict.fromkeys(("numel", "nelement"), lambda x, *_: x.shape.numel()),
    "is_contiguous": lambda *_: True,
}


def ask(name: str) -> Callable[..., Any]:
    """Return a property: of the pattern for shapes, of the values for dtype and device."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if isinstance(x, StoredEntries) and name in ANSWERS:
            return ANSWERS[name](x, args, kwargs)
        if not args:
            return function(_bare(x), **{k: v for k, v in kwargs.items() if k != "input"})
        return function(*map(_bare, args), **kwargs)

    return body


def cotangent(output: StoredEntries, gradient: Any) -> Tensor:
    """A gradient in the storage of ``output``; its unspecified entries are 0, entries not in ``output`` are ignored.

    Args:
        output: stored values.
        gradient: stored (any layout), masked or dense, of the shape of ``output``.

    Raises:
        RuntimeError: the shapes differ.
    """
    if shape_of(gradient) != output.shape:
        raise RuntimeError(
            f"the gradient must have shape {tuple(output.shape)}, found {tuple(shape_of(gradient))}"
        )
    if isinstance(gradient, StoredEntries) and common_pattern([output, gradient], read=True) is not None:
        return gradient.values
    pattern = output.pattern
    jagged = isinstance(pattern, JaggedPattern)  # whose dimensions may be anywhere in the shape
    if isinstance(gradient, StoredEntries) and (jagged or isinstance(gradient.pattern, JaggedPattern)):
        gradient = densified(gradient)
    if isinstance(gradient, Entries):
        gradient = torch.where(gradient.mask, gradient.values, 0)
    if isinstance(pattern, JaggedPattern):
        return at_rows(gradient, pattern)
    if not isinstance(gradient, StoredEntries):
        return pattern.gathered(read_places(gradient, pattern.coordinates()))
    entries, present = lookup(flat(gradient), exploded(output)[0])
    return pattern.gathered(torch.where(present, entries, 0).reshape(output.entries.shape))


RULES: dict[str, Callable[..., Any]] = {
    "clone": _of_values(torch.clone),
    **dict.fromkeys(("detach", "detach_copy"), _of_values(torch.detach)),
    "zero_": _of_values(torch.zeros_like),
    "is_same_size": _same_size,
    **dict.fromkeys(
        ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        _like,
    ),
    "copy_": _copy,
}
