"""How a loss per position becomes one number, and how the arguments that say so are read."""

from __future__ import annotations

import inspect
from math import nan
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import _reduction as _Reduction

from maskgrad import kernels
from maskgrad.kernels.selection import runs_compiled
from maskgrad.semantics.autocasting import wide
from maskgrad.semantics.entries import HALVES, Entries, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.losses.adding_up import added_up, adds_up
from maskgrad.semantics.numbers import number
from maskgrad.semantics.reductions import mean, over_all, sum
from maskgrad.semantics.signatures import paired

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maskgrad.semantics.facts import Operation

PATTERN = "intersection; reduced: a plain number"

#: PyTorch's numbers for the reductions, in order.
REDUCTIONS = ("none", "mean", "sum")
LEGACY = ("size_average", "reduce")


def reduction_named(
    size_average: bool | None, reduce: bool | None, reduction: str, known: tuple[str, ...] = REDUCTIONS
) -> str:
    """The reduction meant, with its two legacy arguments taken into account; PyTorch judges what is none."""
    if size_average is None and reduce is None and reduction in known:
        return reduction
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    return REDUCTIONS[_Reduction.get_enum(reduction)]


def reduce_loss(loss: Entries, reduction: str) -> Entries | Tensor:
    """Reduce a loss per position over the specified positions, to a number."""
    if reduction == "none":
        return loss
    if not adds_up():
        found = over_all(loss, reduction == "mean")
        if found is not None:
            return found
        return number(mean(loss), nan) if reduction == "mean" else number(sum(loss), 0)
    values, dims = loss.values, tuple(range(loss.values.ndim))
    wide = torch.float32 if values.dtype in HALVES else None
    total, count = added_up(*kernels.masked_sum(values, loss.mask, dims, False, wide))
    if reduction == "mean":
        return number(Entries((total / count.clamp(min=1)).to(values.dtype), count > 0), nan)
    return number(Entries(total.to(values.dtype), count > 0), 0)


def weighted_mean(loss: Entries, weight: Tensor, repeated: int = 1) -> Tensor:
    """The sum of losses, already weighted, divided by the sum of the weights of the same positions.

    ``repeated`` says how often broadcasting has repeated each weight: PyTorch counts it once.
    """
    wide = torch.float32 if loss.values.dtype in HALVES else None
    total = sum(loss, dtype=wide)
    share = sum(Entries(weight, loss.mask), dtype=wide)
    if adds_up():
        known = total.mask
        parts = (
            torch.where(known, total.values, 0),
            torch.where(known, share.values, 0),
            known.to(torch.int64),
        )
        of_loss, of_weight, some = added_up(*parts)
        total = Entries(of_loss, some > 0)
        share = Entries(of_weight, some > 0)
    divisor = torch.where(share.mask, share.values, 1)
    if repeated > 1:  # 0 where there is nothing
        divisor = divisor / repeated
    return number(Entries((total.values / divisor).to(loss.values.dtype), total.mask), nan)


def loss_record(
    plain: Callable[..., Any],
    rule: Callable[..., Any],
    gradient: str,
    pattern: str = PATTERN,
    *,
    prepare: Callable[[dict[str, Any]], None] | None = None,
    reductions: tuple[str, ...] = REDUCTIONS,
    order: str = "",
    has_body: bool = False,
    widens: bool = True,
) -> Operation:
    """The record of one loss, under its names in ``torch.nn.functional`` and, if it is there, in ``torch``.

    Args:
        plain: that of ``torch.nn.functional``.
        rule: takes the arguments of ``plain`` by name, the reduction as one of ``reductions``, and neither of the
            two legacy ones.
        gradient: what reaches the operands, in words.
        pattern: which entries are specified, in words.
        prepare: looks at the arguments of ``plain``, and may complete them.
        reductions: the names of reductions that ``rule`` knows.
        order: the arguments of the function in ``torch``, which takes the reduction as a number, if theirs is another
            order than that of ``plain``.
        has_body: whether a compiled kernel computes it, halves too.
        widens: compute halves in float32, as the compiled bodies do it.
    """
    names = tuple(inspect.signature(plain).parameters)
    twin = getattr(torch, plain.__name__, None)
    names_of_twin = order.split() or [name for name in names if name not in LEGACY]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = _half(args, kwargs, has_body) if widens else None
        if wanted is not None:
            args, kwargs = wide(args), wide(kwargs)
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
        if wanted is None:
            return result
        if isinstance(result, Entries):
            return Entries(result.values.to(wanted), result.mask)
        return result.to(wanted)

    functions = (plain,) if twin is None else (plain, twin)
    return record(f"nn.functional.{plain.__name__}", "losses", body, pattern, gradient, functions=functions)


def _half(args: tuple[Any, ...], kwargs: dict[str, Any], has_body: bool) -> torch.dtype | None:
    """The half-precision dtype of all floating-point operands; None if there is none, or if a compiled body runs."""
    for x in args:  # most often the first of them tells
        if isinstance(x, (Entries, torch.Tensor)) and values_of(x).dtype in (torch.float32, torch.float64):
            return None
    values = [values_of(x) for x in (*args, *kwargs.values()) if isinstance(x, (Entries, torch.Tensor))]
    dtypes = {x.dtype for x in values if x.is_floating_point()}
    if len(dtypes) != 1 or not dtypes.issubset(HALVES):
        return None
    if (
        has_body
        and len(values) == 2
        and values[0].shape == values[1].shape
        and not torch.compiler.is_compiling()
    ):
        return None if runs_compiled("masked_loss", *values) else dtypes.pop()
    return dtypes.pop()
