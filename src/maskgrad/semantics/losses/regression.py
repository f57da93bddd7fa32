"""Losses that compare two tensors entry by entry: specified where both are."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.invariant import in_pieces, sum_along
from maskgrad.kernels.reductions import masked_count
from maskgrad.kernels.smallest import any_of
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.semantics.callbacks import as_entries
from maskgrad.semantics.entries import (
    Entries,
    Operand,
    all_specified,
    fill,
    mask_of,
    rearranged,
    specified,
    values_of,
)
from maskgrad.semantics.losses.reduction import (
    ABSOLUTE,
    REDUCTIONS,
    SQUARED,
    distance,
    loss_record,
    quotient,
    reduce_loss,
    summed,
    weighted_mean,
)
from maskgrad.semantics.reductions import sum


def each_position(
    function: Callable[..., Tensor], operands: dict[str, Operand], filler: float, **options: Any
) -> Entries:
    """PyTorch's own loss of each position, with operands made safe where one of them is unspecified."""
    mask = all_specified(*operands.values())
    filled = {name: fill(operand, mask, filler) for name, operand in operands.items()}
    loss = in_pieces(function, **filled, reduction="none", **options)
    return Entries(loss, mask.expand(loss.shape))


def pointwise(function: Callable[..., Tensor], operands: str, filler: float = 1) -> Callable[..., Operand]:
    """The rule of a loss that PyTorch computes position by position; ``operands`` describes each operand."""
    names = operands.split()

    def rule(reduction: str, **given: Any) -> Operand:
        found = {name: x for name in names if (x := given.pop(name, None)) is not None}
        return reduce_loss(each_position(function, found, filler, **given), reduction)

    return rule


def _broadcast(*operands: Operand) -> tuple[Operand, ...]:
    """Operands of one shape, with PyTorch's warning if the first two had different ones."""
    shapes = [values_of(operand).shape for operand in operands]
    if all(shape == shapes[0] for shape in shapes):
        return operands
    if shapes[0] != shapes[1]:
        warnings.warn(
            f"Using a target size ({shapes[1]}) that is different to the input size ({shapes[0]}). This will likely "
            "lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )
    shape = torch.broadcast_shapes(*shapes)
    return tuple(rearranged(operand, lambda part: part.expand(shape)) for operand in operands)


def of_difference(
    function: Callable[..., Tensor], numbers: tuple[float, ...] | None = None, by_weight: bool = False
) -> Callable[..., Operand]:
    """The rule of a loss of the difference; ``numbers`` of its formula; ``by_weight``: a mean over the weights."""

    def rule(
        input: Operand, target: Operand, reduction: str, weight: Operand | None = None, **options: Any
    ) -> Operand:
        if weight is not None:
            return _weighted(function, input, target, weight, reduction, by_weight, **options)
        input, target = _broadcast(input, target)
        found = distance(input, target, reduction, numbers)
        if found is not None:
            return found
        if values_of(input).dtype is values_of(target).dtype:
            return _of_one_difference(function, input, target, reduction, **options)
        # each loss has its own dtype for two of them
        return reduce_loss(
            each_position(function, {"input": input, "target": target}, 1, **options), reduction
        )

    return rule


def _of_one_difference(
    function: Callable[..., Tensor], input: Operand, target: Operand, reduction: str, **options: Any
) -> Operand:
    """The loss by one selection, of the difference: a difference of 0 has the loss 0, so the mask is only counted."""
    mask, difference = all_specified(input, target), values_of(input) - values_of(target)
    # the compiler fuses the formula; it does not vectorise if an eighth of a loop's operations are selections
    difference = torch.where(mask, difference, 0) if mode() in TRACED else fill(difference, mask, 0)
    loss = in_pieces(function, difference, torch.zeros_like(difference), reduction="none", **options)
    if reduction == "none":
        return Entries(loss, mask)
    count = masked_count.reference if mode() in TRACED else masked_count
    return summed(
        sum_along(loss, range(loss.ndim), False),
        count(mask, tuple(range(mask.ndim)), False),
        loss.dtype,
        reduction,
    )


def _weighted(
    function: Callable[..., Tensor],
    input: Operand,
    target: Operand,
    weight: Operand,
    reduction: str,
    by_weight: bool,
    **options: Any,
) -> Operand:
    size = values_of(weight).shape
    if size != values_of(input).shape:
        raise ValueError("Weights and input must have the same size.")
    input, target, weight = _broadcast(input, target, weight)
    mask = all_specified(input, target, weight)
    factor = fill(weight, mask, 0)
    plain = function(fill(input, mask, 1), fill(target, mask, 1), reduction="none", **options)
    loss = Entries(plain * factor, mask)
    if reduction != "mean" or not by_weight:
        return reduce_loss(loss, reduction)
    return weighted_mean(loss, factor, repeated=factor.numel() // max(size.numel(), 1))


def forgotten_weight() -> Operand | None:
    """The weight given to ``F.l1_loss``, which torch 2.13 drops when it dispatches the call to another type.

    It is still a local variable of that function, or of the first of several calls for the same input, where modes
    such as ``torch.set_default_device`` dispatch it, too. Compiled calls are complete.
    """
    if mode() in TRACED:
        return None
    frame: FrameType | None = sys._getframe()
    calls = []
    while frame is not None:
        if frame.f_code is F.l1_loss.__code__:
            calls.append(frame.f_locals)
        frame = frame.f_back
    given = (call["weight"] for call in calls if call["input"] is calls[0]["input"])
    return next((as_entries(weight) for weight in given if weight is not None), None)


def _remember_weight(arguments: dict[str, Any]) -> None:
    if arguments.get("weight") is None:
        arguments["weight"] = forgotten_weight()


def gaussian_nll_loss(
    input: Operand,
    target: Operand,
    var: Operand | float,
    reduction: str,
    full: bool = False,
    eps: float = 1e-6,
) -> Operand:
    """The negative log-likelihood of normal variables, each with its variance."""
    variance = _variance(var, values_of(input))
    mask = all_specified(input, target, variance)
    safe = fill(variance, mask, 1).clone()
    with torch.no_grad():  # the gradient ignores the limit, as in PyTorch
        safe.clamp_(min=eps)
    loss = 0.5 * (torch.log(safe) + (fill(input, mask, 1) - fill(target, mask, 1)) ** 2 / safe)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduce_loss(specified(loss, mask), reduction)


def _variance(var: Operand | float, input: Tensor) -> Operand:
    """``var`` in a shape that broadcasts to the input's, under PyTorch's conditions."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        return var * torch.ones_like(input)
    values = values_of(var)
    if can_read(values) and bool(((values < 0) & mask_of(var)).any()):
        raise ValueError("var has negative entry/entries")
    if values.shape == input.shape:
        return var
    if input.shape[:-1] == values.shape:
        return rearranged(var, lambda part: part.unsqueeze(-1))  # type: ignore[no-any-return]
    different = [v for v, size in zip(values.shape, input.shape, strict=False) if v != size]
    if values.ndim != input.ndim or different != [1]:
        raise ValueError("var is of incorrect size")
    return var


def kl_div(input: Operand, target: Operand, reduction: str, log_target: bool = False) -> Operand:
    """``target (log(target) - input)``; ``"batchmean"`` divides by the number of rows with such a product."""
    loss = each_position(F.kl_div, {"input": input, "target": target}, 1, log_target=log_target)
    if reduction != "batchmean":
        return reduce_loss(loss, reduction)
    total, shape = sum(loss), values_of(input).shape
    if not shape:
        return reduce_loss(loss, "sum")
    # A row of the input, may be repeated by broadcasting.
    row = loss.mask.ndim - len(shape)
    others = tuple(d for d in range(loss.mask.ndim) if d != row or shape[0] == 1)
    rows = any_of(loss.mask, others, False).sum()
    return quotient(total, rows, loss.values.dtype)


SQUARE = "2 (input - target) / count where both are specified"
SIGN = "sign(input - target) / count where both are specified"
DIFFERENCE = "torch's, divided by the count, where both are specified"
ALL = "torch's, divided by the count, where all are specified"

mse_loss = of_difference(F.mse_loss, SQUARED, by_weight=True)
l1_loss = of_difference(F.l1_loss, ABSOLUTE, by_weight=True)

OPERATIONS = (
    loss_record(F.mse_loss, mse_loss, SQUARE),
    loss_record(F.l1_loss, l1_loss, SIGN, prepare=_remember_weight),
    loss_record(F.smooth_l1_loss, of_difference(F.smooth_l1_loss), DIFFERENCE),
    loss_record(F.huber_loss, of_difference(F.huber_loss), DIFFERENCE),
    loss_record(F.poisson_nll_loss, pointwise(F.poisson_nll_loss, "input target"), DIFFERENCE),
    loss_record(F.gaussian_nll_loss, gaussian_nll_loss, ALL),
    loss_record(F.kl_div, kl_div, DIFFERENCE, reductions=(*REDUCTIONS, "batchmean")),
)
