"""Losses of yes or no: binary cross entropy and the soft margins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.losses.fused import fused
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss, reduction_named
from maskgrad.semantics.losses.regression import each_position
from maskgrad.semantics.products import values_of
from maskgrad.semantics.reductions import mean

if TYPE_CHECKING:
    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS"]

Operand = Entries | torch.Tensor


def binary_cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Operand:
    """``-weight (target log(input) + (1 - target) log(1 - input))``; the mean divides by the number of positions."""
    reduction = reduction_named(size_average, reduce, reduction)
    sizes = values_of(input).shape, values_of(target).shape
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"Using a target size ({sizes[1]}) that is different to the input size ({sizes[0]}) is deprecated. "
            "Please ensure they have the same size."
        )
    if weight is None:
        found = fused("probabilities", input, target, reduction)
        if found is not None:
            return found
        return reduce_loss(each_position(F.binary_cross_entropy, (input, target), 0.5), reduction)
    torch.broadcast_shapes(sizes[0], values_of(weight).shape)
    return reduce_loss(each_position(_weighted, (input, target, weight), 0.5), reduction)


def _weighted(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, reduction: str
) -> torch.Tensor:
    return F.binary_cross_entropy(input, target, weight.expand(input.shape), reduction=reduction)


def binary_cross_entropy_with_logits(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Operand | None = None,
) -> Operand:
    """The binary cross entropy of ``sigmoid(input)``; an unspecified weight leaves its positions unspecified."""
    reduction = reduction_named(size_average, reduce, reduction)
    sizes = values_of(input).shape, values_of(target).shape
    if sizes[0] != sizes[1]:
        raise ValueError(f"Target size ({sizes[1]}) must be the same as input size ({sizes[0]})")
    if weight is None and pos_weight is None:
        found = fused("logits", input, target, reduction)
        if found is not None:
            return found
    names = ["weight"] * (weight is not None) + ["pos_weight"] * (pos_weight is not None)
    weights = tuple(w for w in (weight, pos_weight) if w is not None)

    def loss(
        input: torch.Tensor, target: torch.Tensor, *weights: torch.Tensor, reduction: str
    ) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            input,
            target,
            reduction=reduction,
            **dict(zip(names, weights, strict=True)),  # type: ignore[arg-type]
        )

    return reduce_loss(each_position(loss, (input, target, *weights), 1), reduction)


def soft_margin_loss(
    input: Operand,
    target: Operand,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Operand:
    """``log(1 + exp(-target input))``."""
    reduction = reduction_named(size_average, reduce, reduction)
    return reduce_loss(each_position(F.soft_margin_loss, (input, target), 1), reduction)


def multilabel_soft_margin_loss(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Operand:
    """The binary cross entropy with logits, averaged over the specified classes of each sample."""
    reduction = reduction_named(size_average, reduce, reduction)
    operands = (input, target) if weight is None else (input, target, weight)
    return reduce_loss(mean(each_position(_each_label, operands, 1), values_of(input).ndim - 1), reduction)


def _each_label(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, *, reduction: str
) -> torch.Tensor:
    loss = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
    return loss if weight is None else loss * weight


GRADIENT = "torch's, divided by the count, where all operands are specified"

OPERATIONS: tuple[Operation, ...] = (
    loss_record(F.binary_cross_entropy, binary_cross_entropy, GRADIENT, has_body=True),
    loss_record(
        F.binary_cross_entropy_with_logits,
        binary_cross_entropy_with_logits,
        GRADIENT,
        has_body=True,
        twin=(
            torch.binary_cross_entropy_with_logits,
            "input target weight pos_weight reduction",
            binary_cross_entropy_with_logits,
        ),
    ),
    loss_record(F.soft_margin_loss, soft_margin_loss, GRADIENT),
    loss_record(
        F.multilabel_soft_margin_loss,
        multilabel_soft_margin_loss,
        GRADIENT,
        pattern="per sample: one class is specified; reduced: a plain number",
    ),
)
