"""Margins: between the classes of a sample, between pairs and triplets, and soft ones.

Classes are deleted from their sample, features from both sides of a distance, pairs from the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.callbacks import call_back
from maskgrad.semantics.dimensions import specified_first
from maskgrad.semantics.distances import pairwise_distance
from maskgrad.semantics.entries import (
    Entries,
    Operand,
    fill,
    filled,
    intersection,
    mask_of,
    values_of,
)
from maskgrad.semantics.losses.cross_entropy import BINARY, class_dim, read_labels, reshaped
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss
from maskgrad.semantics.losses.regression import each_position, pointwise
from maskgrad.semantics.reductions import mean

#: No label has this value, so none is ignored.
NONE_IGNORED = -(2**63)


def multi_margin_loss(
    input: Operand,
    target: Operand,
    reduction: str,
    p: int = 1,
    margin: float = 1.0,
    weight: Operand | None = None,
) -> Operand:
    """``weight[y] max(0, margin - x[y] + x[i])^p`` summed over the other classes, divided by the number of all."""
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and values_of(weight).ndim != 1:
        raise ValueError("weight must be one-dimensional")
    input = _at_least_one_class(input)
    values, labels = values_of(input), values_of(target)
    if values.ndim not in (1, 2) or not values.shape[-1] or labels.numel() != values.shape[:-1].numel():
        F.multi_margin_loss(values.detach(), torch.zeros_like(labels))  # PyTorch raises the errors
    labelled = read_labels(input, reshaped(target, values.shape[:-1]), weight, NONE_IGNORED)
    dim = class_dim(values.ndim)
    mask = mask_of(input) & labelled.counted.unsqueeze(dim)
    x = torch.where(mask, values, 0)
    label = torch.where(labelled.counted, labelled.classes, 0).unsqueeze(dim)
    # relu, whose gradient at 0 is 0 like torch's here
    distance = F.relu(margin - x.gather(dim, label) + x)
    others = mask.scatter(dim, label, False)
    total = torch.where(others, distance if p == 1 else distance * distance, 0).sum(dim)
    loss = total / mask.sum(dim).clamp(min=1)
    if labelled.weight is not None:
        loss = loss * torch.where(labelled.counted, labelled.weight, 0)
    return reduce_loss(Entries(loss, labelled.counted), reduction)


def _at_least_one_class(input: Operand) -> Operand:
    """PyTorch accepts a scalar as a sample of one class."""
    return reshaped(input, torch.Size([1])) if values_of(input).ndim == 0 else input


def multilabel_margin_loss(input: Operand, target: Operand, reduction: str) -> Operand:
    """``max(0, 1 - x[y] + x[i])`` summed over labels ``y`` and other classes ``i``, divided by the number of classes.

    ``target`` lists the labels of each sample, up to the first -1. An unspecified label is deleted from the list, and
    so is one whose class is unspecified.
    """
    input, target = _at_least_one_class(input), _at_least_one_class(target)
    values, labels = values_of(input), values_of(target)
    if labels.shape != values.shape or labels.dtype != torch.int64 or not values.ndim or not values.shape[-1]:
        F.multilabel_margin_loss(values.detach(), torch.zeros_like(labels))  # PyTorch raises the errors
    classes, listed = mask_of(input), mask_of(target)
    specified = classes.any(-1) & listed.any(-1)
    x = torch.where(classes, values, float("-inf"))  # no margin is violated by -inf
    x = torch.where(specified.unsqueeze(-1), x, 0)
    remaining = _remaining(labels, listed, classes)
    return reduce_loss(
        Entries(_violations(x, remaining) / classes.sum(-1).clamp(min=1), specified), reduction
    )


def _violations(x: Tensor, labels: Tensor) -> Tensor:
    """The sum over pairs of a label and another class."""
    listed = labels >= 0
    label = labels.clamp(min=0)
    is_label = torch.zeros_like(labels).scatter_add(-1, label, listed.to(labels.dtype)) > 0
    distance = F.relu(1 - x.gather(-1, label).unsqueeze(-1) + x.unsqueeze(-2))
    pairs = listed.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    return torch.where(pairs, distance, 0).sum((-2, -1))


def _remaining(labels: Tensor, listed: Tensor, classes: Tensor) -> Tensor:
    """The remaining labels, in order, before the first -1."""
    size = labels.shape[-1]
    before_end = ((labels == -1) & listed).cumsum(-1) == 0
    nearest = labels.clamp(0, size - 1)
    kept = listed & before_end & (classes.gather(-1, nearest) | (labels != nearest))
    return torch.where(kept, labels, -1).gather(-1, specified_first(kept, kept.ndim - 1))


def multilabel_soft_margin_loss(
    input: Operand, target: Operand, reduction: str, weight: Operand | None = None
) -> Operand:
    """The binary cross entropy with logits, averaged over the specified classes of each sample."""
    operands = {"input": input, "target": target} | ({} if weight is None else {"weight": weight})
    return reduce_loss(mean(each_position(_each_label, operands, 1), values_of(input).ndim - 1), reduction)


def _each_label(input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str) -> Tensor:
    loss = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
    return loss if weight is None else loss * weight


MARGIN_RANKING = pointwise(F.margin_ranking_loss, "input1 input2 target")


def margin_ranking_loss(reduction: str, **given: Any) -> Operand:
    """``max(0, margin - target (input1 - input2))``."""
    sizes = [values_of(given[name]).shape for name in ("input1", "input2", "target")]
    if len({len(size) for size in sizes}) > 1:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {sizes[0]}, input2: {sizes[1]}, target: {sizes[2]} "
        )
    return MARGIN_RANKING(reduction, **given)


def cosine_embedding_loss(
    input1: Operand, input2: Operand, target: Operand, reduction: str, margin: float = 0
) -> Operand:
    """``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1; over the features both sides have."""
    labels, known = values_of(target), mask_of(target)
    shape = torch.broadcast_shapes(values_of(input1).shape, values_of(input2).shape)
    features = mask_of(input1).expand(shape) & mask_of(input2).expand(shape)
    # A feature of zero adds nothing to a product or a length.
    first, second = fill(input1, features, 0), fill(input2, features, 0)
    pairs = features.any(-1) if features.ndim else features
    both = pairs & known if labels.shape == pairs.shape else pairs
    shown = both.unsqueeze(-1) if features.ndim else both
    loss = F.cosine_embedding_loss(
        torch.where(shown, first, 0),
        torch.where(shown, second, 0),
        filled(target, 1),
        margin,
        reduction="none",
    )
    return reduce_loss(Entries(loss, both), reduction)


def distance(first: Operand, second: Operand, p: float = 2, eps: float = 1e-6) -> Operand:
    """The p-norm of ``first - second + eps`` over the last dimension, over the features that both sides have."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return F.pairwise_distance(first, second, p, eps)
    return pairwise_distance(first, second, p, eps)


def triplet_margin_loss(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    reduction: str,
    margin: float = 1.0,
    swap: bool = False,
    **norm: float,
) -> Operand:
    """``max(0, margin + |anchor - positive| - |anchor - negative|)``, over the features that both sides have."""
    loss = _triplet(anchor, positive, negative, margin, swap, lambda x, y: distance(x, y, **norm))
    return reduce_loss(loss, reduction)


def triplet_margin_with_distance_loss(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    reduction: str,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
) -> Operand:
    """The same with a user's distance, which gets MaskedTensors for masked operands."""
    measure = distance if distance_function is None else lambda x, y: call_back(distance_function, x, y)
    return reduce_loss(_triplet(anchor, positive, negative, margin, swap, measure), reduction)


def _triplet(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    margin: float,
    swap: bool,
    measure: Callable[[Any, Any], Operand],
) -> Entries:
    """The loss of each triplet whose distances are all specified."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    ranks = [values_of(operand).ndim for operand in (anchor, positive, negative)]
    if len(set(ranks)) > 1:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {ranks[0]}D, positive {ranks[1]}D, and negative {ranks[2]}D inputs"
        )
    near, far = measure(anchor, positive), measure(anchor, negative)
    distances = [near, far, measure(positive, negative)] if swap else [near, far]
    mask = intersection(distances)
    if mask is None:  # the user's distance has filled missing entries
        mask = mask_of(values_of(near))
    close, apart, *between = (fill(operand, mask, 1) for operand in distances)
    if between:
        apart = torch.minimum(apart, between[0])
    loss = torch.clamp_min(margin + close - apart, 0)
    return Entries(loss, mask.expand(loss.shape))


CLASSES = "torch's, over the specified classes"
LABEL = "per sample: the label and its class are specified; reduced: a plain scalar"
LABELS = "per sample: a class and a label are specified; reduced: a plain scalar"
ONE_CLASS = "per sample: one class is specified; reduced: a plain scalar"
DISTANCES = "per pair: each distance has a feature that both sides have; reduced: a plain scalar"
FEATURES = "torch's, over the specified features and pairs"
VIOLATED = "-target / count and target / count where the margin is violated"

HINGE = pointwise(F.hinge_embedding_loss, "input target")
SOFT = pointwise(F.soft_margin_loss, "input target")

OPERATIONS = (
    loss_record(F.soft_margin_loss, SOFT, BINARY),
    loss_record(F.multilabel_soft_margin_loss, multilabel_soft_margin_loss, BINARY, ONE_CLASS),
    loss_record(F.multi_margin_loss, multi_margin_loss, CLASSES, LABEL),
    loss_record(F.multilabel_margin_loss, multilabel_margin_loss, f"{CLASSES} and labels", LABELS),
    loss_record(F.margin_ranking_loss, margin_ranking_loss, VIOLATED),
    # no cancellation within an entry, and PyTorch's rounding
    loss_record(
        F.hinge_embedding_loss, HINGE, "torch's, divided by the count, where both are specified", widens=False
    ),
    loss_record(F.cosine_embedding_loss, cosine_embedding_loss, FEATURES, DISTANCES),
    loss_record(F.triplet_margin_loss, triplet_margin_loss, FEATURES, DISTANCES),
    # the distance function is the user's
    loss_record(
        F.triplet_margin_with_distance_loss,
        triplet_margin_with_distance_loss,
        FEATURES,
        DISTANCES,
        widens=False,
        padded="",
    ),
)
