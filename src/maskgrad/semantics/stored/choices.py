"""``where`` on stored values: specified where the condition is, and the chosen side is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.elementwise import apply
from maskgrad.semantics.stored.entries import Stored, flat, from_places, is_masked, shape_of, with_values
from maskgrad.semantics.stored.views import expand

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]


def where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Between two sides of which both are stored, or by a stored condition; else the result would be dense."""
    names = ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
    arguments = paired(names, args) | {{"self": "input"}.get(k, k): v for k, v in kwargs.items()}
    if len(arguments) < 3:
        raise TypeError("where of a MaskedTensor needs a condition and two sides")
    condition, a, b = (arguments[n] for n in ("condition", "input", "other"))
    values = condition.values if isinstance(condition, (Stored, Entries)) else condition
    if values.dtype != torch.bool:
        raise TypeError(
            f"condition must be a Boolean tensor, found {values.dtype}; write it out, as in condition != 0"
        )
    kinds = [isinstance(side, Stored) for side in (a, b)]
    if not isinstance(condition, Stored) and not all(kinds):
        stored = a if kinds[0] else b
        raise UnsupportedLayoutError(
            "where() of a sparse and a dense side", stored.pattern.layout, tuple(stored.shape)
        )
    dtype = _dtype_of_both(*[side.values if isinstance(side, (Stored, Entries)) else side for side in (a, b)])
    shape = torch.broadcast_shapes(*[shape_of(o) for o in (condition, a, b)])
    sides = [
        _chosen(condition if wanted else _negated(condition), side, dtype, shape)
        for wanted, side in ((True, a), (False, b))
    ]
    coordinates = torch.cat([side.pattern.coordinates() for side in sides], 1)
    entries = torch.cat([side.entries for side in sides])
    model = next(o for o in (a, b, condition) if isinstance(o, Stored)).pattern
    return from_places(coordinates, entries, tuple(shape), model)


def _dtype_of_both(a: Any, b: Any) -> torch.dtype:
    """``torch.result_type``, which torch.compile cannot trace."""
    if not torch.compiler.is_compiling():
        return torch.result_type(a, b)
    # the rank of an operand counts, not its size
    a, b = (x.new_empty((0,) * x.ndim) if isinstance(x, Tensor) else x for x in (a, b))
    model = a if isinstance(a, Tensor) else b
    return torch.where(model.new_empty((0,) * model.ndim, dtype=torch.bool), a, b).dtype


def _negated(condition: Any) -> Any:
    return with_values(condition, ~condition.values) if is_masked(condition) else ~condition


def _chosen(condition: Any, side: Any, dtype: torch.dtype, shape: torch.Size) -> Stored:
    """The entries of one side at which the condition is specified and true."""

    def run(values: list[Any]) -> tuple[Tensor, Tensor]:
        kept, value = values
        value = torch.as_tensor(value, dtype=dtype, device=kept.device).to(dtype)
        return tuple(torch.broadcast_tensors(kept, value))

    kept, value = apply(run, [condition, side])
    kept, value = (
        flat(part if part.shape == shape else expand(part, tuple(shape))) for part in (kept, value)
    )
    chosen = kept.entries
    return from_places(value.pattern.coordinates()[:, chosen], value.entries[chosen], tuple(shape))


RULES: dict[str, Callable[..., Any]] = {"where": where}
