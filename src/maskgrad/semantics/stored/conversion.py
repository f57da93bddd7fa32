"""Conversions of stored values, and what can be asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES", "ask", "convert"]


def convert(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change dtype or device of the values; the pattern follows to the device."""
    x, *rest = args
    others = [a.values if isinstance(a, (Stored, Entries)) else a for a in rest]
    if not isinstance(x, Stored):
        return function(x, *others, **kwargs)
    values = function(x.values, *others, **kwargs)
    if not isinstance(values, Tensor):
        return values
    moved = [t.to(values.device) for t in x.pattern.tensors()]
    return Stored(values, x.pattern.rebuilt(tuple(moved)))  # type: ignore[arg-type]


def clone(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored:
    """A copy of the values; patterns never change, so they are shared."""
    x = args[0] if args else kwargs["input"]
    return Stored(x.values.clone(), x.pattern)


def detach(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored:
    """The values out of the graph."""
    x = args[0] if args else kwargs["input"]
    return Stored(x.values.detach(), x.pattern)


def same_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have one shape, however they are stored."""
    return bool(shape_of(args[0]) == shape_of(args[1] if len(args) > 1 else kwargs["other"]))


def ask(name: str) -> Callable[..., Any]:
    """Questions about shape are answered by the pattern, those about dtype and device by the values."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if not isinstance(x, Stored):
            return function(*[a.values if isinstance(a, (Stored, Entries)) else a for a in args], **kwargs)
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
        rest = [a.values if isinstance(a, (Stored, Entries)) else a for a in args[1:]]
        return function(x.values, *rest, **kwargs)

    return body


RULES: dict[str, Callable[..., Any]] = {
    "clone": clone,
    **dict.fromkeys(("detach", "detach_copy"), detach),
    "is_same_size": same_size,
}
