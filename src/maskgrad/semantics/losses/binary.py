"""Losses of yes or no: binary cross entropy and the soft margins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Operand, values_of
from maskgrad.semantics.losses.fused import fused
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss
from maskgrad.semantics.losses.regression import each_position, pointwise
from maskgrad.semantics.reductions import mean

if TYPE_CHECKING:
    pass


#: Both step by step, as PyTorch computes them.
OF_PROBABILITIES = pointwise(F.binary_cross_entropy, "input target weight", 0.5)
OF_LOGITS = pointwise(F.binary_cross_entropy_with_logits, "input target weight pos_weight")


def binary_cross_entropy(
    input: Operand, target: Operand, reduction: str, weight: Operand | None = None
) -> Operand:
    """``-weight (target log(input) + (1 - target) log(1 - input))``; the mean divides by the number of positions."""
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
    else:
        torch.broadcast_shapes(sizes[0], values_of(weight).shape)
    return OF_PROBABILITIES(reduction, input=input, target=target, weight=weight)


def binary_cross_entropy_with_logits(
    input: Operand, target: Operand, reduction: str, **weights: Operand | None
) -> Operand:
    """The binary cross entropy of ``sigmoid(input)``; an unspecified weight leaves its positions unspecified."""
    sizes = values_of(input).shape, values_of(target).shape
    if sizes[0] != sizes[1]:
        raise ValueError(f"Target size ({sizes[1]}) must be the same as input size ({sizes[0]})")
    if all(weight is None for weight in weights.values()):
        found = fused("logits", input, target, reduction)
        if found is not None:
            return found
    return OF_LOGITS(reduction, input=input, target=target, **weights)


def multilabel_soft_margin_loss(
    input: Operand, target: Operand, reduction: str, weight: Operand | None = None
) -> Operand:
    """The binary cross entropy with logits, averaged over the specified classes of each sample."""
    operands = {"input": input, "target": target} | ({} if weight is None else {"weight": weight})
    return reduce_loss(mean(each_position(_each_label, operands, 1), values_of(input).ndim - 1), reduction)


def _each_label(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, *, reduction: str
) -> torch.Tensor:
    loss = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
    return loss if weight is None else loss * weight


GRADIENT = "torch's, divided by the count, where all operands are specified"

OPERATIONS = (
    loss_record(F.binary_cross_entropy, binary_cross_entropy, GRADIENT, has_body=True),
    loss_record(
        F.binary_cross_entropy_with_logits,
        binary_cross_entropy_with_logits,
        GRADIENT,
        order="input target weight pos_weight reduction",
        has_body=True,
    ),
    loss_record(F.soft_margin_loss, pointwise(F.soft_margin_loss, "input target"), GRADIENT),
    loss_record(
        F.multilabel_soft_margin_loss,
        multilabel_soft_margin_loss,
        GRADIENT,
        "per sample: one class is specified; reduced: a plain number",
    ),
)
