"""Conversions of stored values, and what can be asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.algebra import equal
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import plain_arguments
from maskgrad.semantics.sparse.entries import SparseEntries, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES", "ask", "convert"]


LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"


def convert(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change dtype or device of the values; the pattern follows to the device."""
    x, *rest = args
    others = [a.values if isinstance(a, (SparseEntries, Entries)) else a for a in rest]
    if not isinstance(x, SparseEntries):
        return function(x, *others, **kwargs)
    values = function(x.values, *others, **kwargs)
    if not isinstance(values, Tensor):
        return values
    moved = [t.to(values.device) for t in x.pattern.tensors()]
    return SparseEntries(values, x.pattern.rebuilt(tuple(moved)))  # type: ignore[arg-type]


def clone(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseEntries:
    """A copy of the values; patterns never change, so they are shared."""
    x = args[0] if args else kwargs["input"]
    return SparseEntries(x.values.clone(), x.pattern)


def detach(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseEntries:
    """The values out of the graph."""
    x = args[0] if args else kwargs["input"]
    return SparseEntries(x.values.detach(), x.pattern)


def like(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseEntries:
    """``ones_like`` and its kin: new values in the same pattern."""
    x, *rest = args or (kwargs["input"],)
    options = {name: value for name, value in kwargs.items() if name != "input"}
    plain, options = plain_arguments(rest, options)
    values = function(x.values, *plain, **options)
    if values.device == x.values.device:
        return SparseEntries(values, x.pattern)
    moved = [t.to(values.device) for t in x.pattern.tensors()]
    return SparseEntries(values, x.pattern.rebuilt(tuple(moved)))


def zero(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseEntries:
    """Zeros for what is stored; in place there is nothing else."""
    return SparseEntries(torch.zeros_like(args[0].values), args[0].pattern)


def copy(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseEntries:
    """``x.copy_(source)`` from the same layout; where the pattern is the same, to the memory that there is."""
    x, source = args[0], args[1] if len(args) > 1 else kwargs["src"]
    if not (
        isinstance(x, SparseEntries)
        and isinstance(source, SparseEntries)
        and x.pattern.facts() == source.pattern.facts()
    ):
        target, found = (
            f"{part.pattern.layout}, {tuple(part.shape)}"
            if isinstance(part, SparseEntries)
            else "a Boolean mask or none"
            for part in (x, source)
        )
        raise TypeError(
            f"copy_ between MaskedTensors needs one layout and shape; the target has {target}, the source {found}; "
            "convert the source first: source.to_dense(), source.to_sparse(), …"
        )
    values = source.values.to(x.values)
    if equal(x.pattern, source.pattern):
        return SparseEntries(values, x.pattern)
    moved = [t.to(values.device) for t in source.pattern.tensors()]
    return SparseEntries(values, source.pattern.rebuilt(tuple(moved)))  # type: ignore[arg-type]


def same_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have one shape, however they are stored."""
    return bool(shape_of(args[0]) == shape_of(args[1] if len(args) > 1 else kwargs["other"]))


def ask(name: str) -> Callable[..., Any]:
    """Questions about shape are answered by the pattern, those about dtype and device by the values."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if not isinstance(x, SparseEntries):
            return function(
                *[a.values if isinstance(a, (SparseEntries, Entries)) else a for a in args], **kwargs
            )
        shape = x.shape
        answers: dict[str, Callable[[], Any]] = {
            "shape": lambda: shape,
            "size": lambda: (
                shape[args[1]] if len(args) > 1 else shape[kwargs["dim"]] if "dim" in kwargs else shape
            ),
            "ndim": lambda: len(shape),
            "dim": lambda: len(shape),
            "ndimension": lambda: len(shape),
            "numel": shape.numel,
            "nelement": shape.numel,
            "is_sparse": lambda: x.pattern.layout == torch.sparse_coo,
            "is_sparse_csr": lambda: x.pattern.layout == torch.sparse_csr,
            "is_contiguous": lambda: True,
        }
        if name in answers:
            return answers[name]()
        rest = [a.values if isinstance(a, (SparseEntries, Entries)) else a for a in args[1:]]
        return function(x.values, *rest, **kwargs)

    return body


RULES: dict[str, Callable[..., Any]] = {
    "clone": clone,
    **dict.fromkeys(("detach", "detach_copy"), detach),
    "is_same_size": same_size,
    **dict.fromkeys(LIKE.split(), like),
    "zero_": zero,
    "copy_": copy,
}
