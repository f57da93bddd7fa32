"""Which operation has a rule for stored values: by its name, or by its family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.semantics import differentiation
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.losses.reduction import reduction_named
from maskgrad.semantics.signatures import named
from maskgrad.semantics.stored import contractions, reductions, softmax, views
from maskgrad.semantics.stored.elementwise import apply, elementwise, same_pattern
from maskgrad.semantics.stored.entries import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["rule_for"]

#: Losses that are a formula for each position, reduced afterwards.
POSITIONWISE = frozenset(
    f"nn.functional.{name}"
    for name in (
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "poisson_nll_loss",
        "kl_div",
    )
)


def loss(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A loss over the positions at which all operands have an entry."""
    options = dict(kwargs)
    reduction = reduction_named(
        options.pop("size_average", None), options.pop("reduce", None), options.pop("reduction", "mean")
    )
    names = [name for name, value in options.items() if isinstance(value, (Stored, Entries, Tensor))]
    fixed = {name: value for name, value in options.items() if name not in names}

    def run(values: list[Any]) -> Any:
        named_values = dict(zip(names, values[len(args) :], strict=True))
        return function(*values[: len(args)], **named_values, **fixed, reduction="none")

    positions: Stored = apply(run, [*args, *(options[name] for name in names)])
    if reduction == "none":
        return positions
    formula = reductions.mean if reduction == "mean" else reductions.total
    return reductions.rule(formula)(positions)


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
    return Stored(args[0].values.detach(), args[0].pattern)


def where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.where`` between two sides of one pattern; any other two would need the whole shape."""
    names = ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    condition, *sides = (arguments[n] for n in ("condition", "input", "other"))
    stored = [side for side in sides if isinstance(side, Stored)]
    if len(stored) < 2 or not same_pattern(stored) or isinstance(condition, (Stored, Entries)):
        layout = next(a.pattern.layout for a in (condition, *sides) if isinstance(a, Stored))
        raise UnsupportedLayoutError("where() with sides of different patterns", layout)
    return apply(lambda v: torch.where(v[0], v[1], v[2]), [condition, *sides])


def ask(name: str) -> Callable[..., Any]:
    """Questions about shape are answered by the pattern, those about dtype and device by the values."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if not isinstance(x, Stored):
            return function(*[a.values if isinstance(a, Stored) else a for a in args], **kwargs)
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
        return function(x.values, *args[1:], **kwargs)

    return body


UNKNOWN_TO_STORED = frozenset({"stride", "storage_offset", "data_ptr"})


def rule_for(operation: Operation) -> Callable[..., Any] | None:
    """The body for stored values, None where there is none."""
    name, family = operation.name, operation.family
    if name in BY_NAME:
        return BY_NAME[name]
    if family == "elementwise" and name not in ("prelu", "rrelu"):
        return elementwise
    if family == "metadata" and name not in UNKNOWN_TO_STORED:
        return ask(name)
    if family == "conversion":
        return convert
    return None


def _plainly(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule whose first argument is positional, called like the function."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options = dict(kwargs)
        first = args if args else (options.pop("input" if "input" in options else "tensors"),)
        return rule(*first, **options)

    return body


BY_NAME: dict[str, Callable[..., Any]] = {
    **{name: named(rule) for name, rule in reductions.RULES.items()},
    **{name: named(rule) for name, rule in softmax.RULES.items()},
    **contractions.RULES,
    **{name: _plainly(rule) for name, rule in views.RULES.items()},
    **dict.fromkeys(POSITIONWISE, loss),
    "clone": clone,
    "detach": detach,
    "where": where,
    "autograd.grad": differentiation.grad,
    "autograd.backward": differentiation.backward,
}
