"""Losses: over the positions where both sides are specified; the mean divides by their number."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.nn import _reduction as _Reduction

from maskgrad.semantics.entries import Entries, fill, intersection, specified
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.reductions import mean, sum
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPERATIONS", "reduce_loss"]

PATTERN = "intersection; reduced: specified where at least one position was"


def reduction_named(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction meant, with its two legacy arguments taken into account."""
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', found {reduction!r}")
    return reduction


def reduce_loss(loss: Entries, reduction: str) -> Entries:
    """Reduce a loss per position over the specified positions."""
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


def mse_loss(
    input: Entries | Tensor,
    target: Entries | Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Entries | Tensor | None = None,
) -> Entries:
    """``(input - target)²``, times ``weight``, over the positions where all are specified.

    With weights the mean is torch's: the weighted sum divided by the sum of the weights.
    """
    reduction = reduction_named(size_average, reduce, reduction)
    operands = (input, target) if weight is None else (input, target, weight)
    mask = intersection(operands)
    assert mask is not None  # dispatch calls a rule only with masked arguments
    shapes = [(o.values if isinstance(o, Entries) else o).shape for o in operands]
    if shapes[0] != shapes[1]:
        warnings.warn(
            f"Using a target size ({shapes[1]}) that is different to the input size ({shapes[0]}). This will likely "
            "lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )
    filled = [fill(operand, mask, 1) for operand in operands]
    loss = specified(
        F.mse_loss(filled[0], filled[1].expand(torch.broadcast_shapes(*shapes)), reduction="none"), mask
    )
    if weight is None:
        return reduce_loss(loss, reduction)
    weighted = Entries(loss.values * filled[2], loss.mask)
    if reduction != "mean":
        return reduce_loss(weighted, reduction)
    total, weights = sum(weighted), sum(Entries(filled[2].expand(loss.values.shape), loss.mask))
    return Entries(total.values / torch.where(weights.mask, weights.values, 1), total.mask)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "nn.functional.mse_loss",
        "losses",
        functions_named("mse_loss")[0],
        named(mse_loss),
        PATTERN,
        "2 (input - target) / count where both are specified",
        filler=1,
    ),
)
