"""Reducing the losses of positions to a scalar, and reading the arguments for this.

Losses of a difference have a formula of their own in eager code (``kernels/losses``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction as _Reduction

from maskgrad import kernels
from maskgrad.kernels.invariant import is_invariant
from maskgrad.kernels.kernel import FLOATS
from maskgrad.mode import PLAIN, can_read, mode
from maskgrad.semantics.autocasting import cast
from maskgrad.semantics.entries import HALVES, Entries, Operand, all_specified, converted, values_of
from maskgrad.semantics.facts import Operation, record
from maskgrad.semantics.losses.adding_up import added_up
from maskgrad.semantics.numbers import note, number
from maskgrad.semantics.reductions import sum
from maskgrad.semantics.signatures import paired

PATTERN = "intersection; reduced: a plain scalar"

#: PyTorch's integers for the reductions, in order.
REDUCTIONS = ("none", "mean", "sum")
LEGACY = ("size_average", "reduce")


def reduction_named(
    size_average: bool | None, reduce: bool | None, reduction: str, known: tuple[str, ...] = REDUCTIONS
) -> str:
    """The reduction, from it and the two legacy arguments; PyTorch refuses unknown ones."""
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    return reduction if reduction in known else REDUCTIONS[_Reduction.get_enum(reduction)]


def reduce_loss(loss: Entries, reduction: str) -> Entries | Tensor:
    """Reduce a loss per position over the specified positions, to a scalar."""
    if reduction == "none":
        return loss
    values, dims = loss.values, tuple(range(loss.values.ndim))
    is_half = values.dtype in HALVES
    total, _ = kernels.masked_sum(values, loss.mask, dims, False, torch.float32 if is_half else None)
    count = kernels.masked_count(loss.mask, dims, False)
    return summed(total, count, values.dtype if is_half else total.dtype, reduction)


def summed(total: Tensor, count: Tensor, dtype: torch.dtype, reduction: str) -> Tensor:
    """The mean or the sum, of this process or of several."""
    if reduction == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        total.mean()  # torch refuses integers
    total, count = added_up(total, count)
    if can_read(count) and (number_of := count.item()):
        note(None)
        total = total / number_of if reduction == "mean" else total
        return total if total.dtype is dtype else total.to(dtype)
    total, nothing = (total / count.clamp(min=1), nan) if reduction == "mean" else (total, 0)
    return number(Entries(total.to(dtype), count.to(torch.bool)), nothing)


def quotient(total: Entries, divisor: Tensor, dtype: torch.dtype) -> Tensor:
    """A specified total divided by ``divisor``, each of this process or summed over several; NaN if there is none."""
    parts = [torch.where(total.mask, part, 0) for part in (total.values, divisor)]
    numerator, denominator, known = added_up(*parts, total.mask.to(torch.int64))
    known = known > 0
    return number(Entries((numerator / torch.where(known, denominator, 1)).to(dtype), known), nan)


def weighted_mean(loss: Entries, weight: Tensor, repeated: int = 1) -> Tensor:
    """Weighted losses over the sum of their weights; PyTorch counts each once, broadcasting ``repeated`` times."""
    wide = torch.float32 if loss.values.dtype in HALVES else None
    share = sum(Entries(weight, loss.mask), dtype=wide).values
    return quotient(sum(loss, dtype=wide), share / repeated if repeated > 1 else share, loss.values.dtype)


#: The scalars of a distance: see ``maskgrad/kernels/losses/__init__.py``.
SQUARED = (1.0, inf, 1.0, 0.0)
ABSOLUTE = (0.0, 0.0, 1.0, 0.0)


def distance(
    input: Operand, target: Operand, reduction: str, numbers: Sequence[float] | None
) -> Tensor | None:
    """The sum or mean of a loss of the difference, in one pass; None where PyTorch's function computes it."""
    if mode() != "eager" or numbers is None or reduction == "none" or is_invariant():
        return None
    x, t = values_of(input), values_of(target)
    known = type(x) in PLAIN and type(t) in PLAIN and x.dtype in FLOATS
    if not known or x.shape != t.shape or x.dtype is not t.dtype:
        return None
    found = kernels.masked_distance_sum(x, t, all_specified(input, target), numbers)
    return summed(*found, x.dtype, reduction)


def loss_record(
    plain: Callable[..., Any],
    rule: Callable[..., Any],
    gradient: str,
    pattern: str = "",
    *,
    prepare: Callable[[dict[str, Any]], None] | None = None,
    reductions: tuple[str, ...] = REDUCTIONS,
    order: str = "",
    widens: bool = True,
    padded: str = "mask",
) -> Operation:
    """The record of one loss, with its names in ``torch.nn.functional`` and, if any, in ``torch``.

    ``rule`` takes the arguments of ``plain`` by name, the reduction as one of ``reductions``, and neither of the two
    legacy ones. ``prepare`` checks the arguments, and may add defaults; ``order`` is that of the function in ``torch``,
    which takes the reduction as an int; ``widens``: half precision is computed in float32.
    """
    names = tuple(inspect.signature(plain).parameters)
    twin = getattr(torch, plain.__name__, None)
    names_of_twin = order.split() or [name for name in names if name not in LEGACY]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = _half(args, kwargs) if widens else None
        if wanted is not None:
            args, kwargs = cast(args, torch.float32), cast(kwargs, torch.float32)
        if function is twin:
            arguments = paired(names_of_twin, args) | kwargs
            arguments["reduction"] = REDUCTIONS[arguments.get("reduction", 1)]
        else:
            arguments = paired(names, args)
            arguments.update(kwargs)
            if prepare is not None:
                prepare(arguments)
            size_average, reduce = arguments.pop("size_average", None), arguments.pop("reduce", None)
            reduction = arguments.get("reduction", "mean")
            arguments["reduction"] = reduction_named(size_average, reduce, reduction, reductions)
        result = rule(**arguments)
        return result if wanted is None else converted(result, wanted)

    functions = (plain,) if twin is None else (plain, twin)
    return record(
        f"nn.functional.{plain.__name__}", "losses", body, pattern or PATTERN, gradient,
        functions=functions, by_position=not pattern, padded=padded,
    )  # fmt: skip


def _half(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The half-precision dtype of all floating-point operands; None if there is none."""
    for x in args:  # usually the first one decides
        if isinstance(x, (Entries, torch.Tensor)) and values_of(x).dtype in (torch.float32, torch.float64):
            return None
    values = [values_of(x) for x in (*args, *kwargs.values()) if isinstance(x, (Entries, torch.Tensor))]
    dtypes = {x.dtype for x in values if x.is_floating_point()}
    if len(dtypes) != 1 or not dtypes.issubset(HALVES):
        return None
    return dtypes.pop()
