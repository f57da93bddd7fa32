"""Cross entropy, of classes and binary.

Unspecified classes are ignored in their sample, samples without label or classes in the loss.

``cross_entropy`` is ``nll_loss`` of ``log_softmax``: the softmax runs over the specified logits, then the label reads
one of them. A label that points at an unspecified class leaves its position unspecified. Probabilities and label
smoothing are sums over the fully specified classes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.mode import mode
from maskgrad.semantics.autocasting import cast
from maskgrad.semantics.contractions import linear
from maskgrad.semantics.entries import (
    HALVES,
    Entries,
    Operand,
    converted,
    filled,
    mask_of,
    rearranged,
    values_of,
)
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss, weighted_mean
from maskgrad.semantics.losses.regression import pointwise
from maskgrad.semantics.reductions import sum
from maskgrad.semantics.softmax import log_softmax


class Labels(NamedTuple):
    """The labels of a call, position by position.

    Attributes:
        classes: the label where it counts, ``ignore_index`` elsewhere: safe to look up.
        counted: the label, the entry of the class it points at, and the weight of that class are specified, and the
            label is not ignored: ``ignore_index`` marks it as unspecified.
        weight: the weight of each position, None if all are equal.
    """

    classes: Tensor
    counted: Tensor
    weight: Tensor | None


def class_dim(ndim: int) -> int:
    """Classes lie along dimension 1; of a single sample along dimension 0."""
    return 1 if ndim > 1 else 0


def read_labels(scores: Operand, target: Operand, weight: Operand | None, ignore_index: int) -> Labels:
    """Find the class of each label, without reading unspecified entries."""
    values, labels = values_of(scores), values_of(target)
    dim = class_dim(values.ndim)
    labels = labels.long() if labels.dtype == torch.uint8 else labels
    classes = values.shape[dim] if values.ndim else 0
    positions = values.shape[:dim] + values.shape[dim + 1 :]
    if labels.shape != positions or labels.dtype != torch.int64 or not classes:
        # PyTorch raises the errors; otherwise there is no position at all.
        F.nll_loss(values.detach(), torch.zeros_like(labels), reduction="none")
    known = mask_of(target)
    if not classes:
        return Labels(labels, known, None)
    nearest = labels.clamp(0, classes - 1)
    hit = _points_at(scores, weight, nearest, known)
    # PyTorch must see labels outside the classes to refuse them.
    hit = hit | (labels != nearest)
    counted = known & hit & (labels != ignore_index)
    share = None if weight is None else filled(weight)[nearest]  # 0 where it is unspecified
    return Labels(torch.where(counted, labels, ignore_index), counted, share)


def _points_at(scores: Operand, weight: Operand | None, labels: Tensor, known: Tensor) -> Tensor:
    """Return where the class of a label, and the weight of that class, are specified."""
    hit = torch.ones_like(known)
    if isinstance(scores, Entries):
        dim = class_dim(scores.values.ndim)
        hit = scores.mask.gather(dim, labels.unsqueeze(dim)).squeeze(dim)
    return hit & weight.mask[labels] if isinstance(weight, Entries) else hit


def label_loss(scores: Operand, labels: Labels, weight: Operand | None, ignore_index: int) -> Tensor:
    """``-weight[label] * scores[label]`` where the label counts, 0 elsewhere."""
    values = values_of(scores).contiguous()  # for images, PyTorch's backward pass requires it
    return F.nll_loss(values, labels.classes, filled(weight), ignore_index=ignore_index, reduction="none")


def reduce_labelled(loss: Tensor, labels: Labels, reduction: str) -> Operand:
    """Reduce a loss per position over those that count."""
    counted = Entries(loss, labels.counted)
    if reduction != "mean" or labels.weight is None:
        return reduce_loss(counted, reduction)
    return weighted_mean(counted, labels.weight)


def nll_loss(
    input: Operand,
    target: Operand,
    reduction: str,
    weight: Operand | None = None,
    ignore_index: int = -100,
) -> Operand:
    """Negative log-probability of each label."""
    labels = read_labels(input, target, weight, ignore_index)
    return reduce_labelled(label_loss(input, labels, weight, ignore_index), labels, reduction)


def cross_entropy(
    input: Operand,
    target: Operand,
    reduction: str,
    weight: Operand | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Operand:
    """Negative log-probability of each label, or the expected one under given probabilities."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if values_of(input).shape == values_of(target).shape:
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        return reduce_loss(probability_loss(input, target, weight, label_smoothing), reduction)
    labels = read_labels(input, target, weight, ignore_index)
    scores = log_probabilities(input, labels.counted)
    loss = label_loss(scores, labels, weight, ignore_index)
    if label_smoothing > 0:
        smooth = smoothing_loss(scores, weight).values
        loss = (1 - label_smoothing) * loss + label_smoothing * torch.where(labels.counted, smooth, 0)
    return reduce_labelled(loss, labels, reduction)


def log_probabilities(input: Operand, positions: Tensor) -> Entries:
    """The log-softmax over the specified classes, at the specified positions; nothing else is read."""
    values = values_of(input)
    dim = class_dim(values.ndim)
    here = positions.unsqueeze(dim).expand(values.shape)
    return log_softmax(Entries(values, input.mask & here if isinstance(input, Entries) else here), dim)


def smoothing_loss(scores: Entries, weight: Operand | None) -> Entries:
    """The mean of ``-weight * scores`` over the classes where both are specified."""
    terms = class_terms(scores, weight)
    loss, count = class_sum(torch.where(terms, -scores.values, 0), terms, weight)
    return Entries(loss.values / count, loss.mask)


def probability_loss(
    input: Operand, target: Operand, weight: Operand | None, label_smoothing: float
) -> Entries:
    """``-sum(weight * target * log_softmax(input))`` over the fully specified classes."""
    values, probabilities = values_of(input), values_of(target)
    if not probabilities.is_floating_point():
        raise RuntimeError(
            f"Expected floating point type for target with class probabilities, got {probabilities.dtype}"
        )
    dim = class_dim(values.ndim)
    scores = log_probabilities(input, mask_of(target).any(dim))
    terms = class_terms(Entries(scores.values, scores.mask & mask_of(target)), weight)
    probabilities = torch.where(terms, probabilities, 0)
    if label_smoothing > 0:
        count = terms.sum(dim, keepdim=True).clamp(min=1)
        probabilities = probabilities * (1 - label_smoothing) + label_smoothing / count
    loss, _ = class_sum(-torch.where(terms, scores.values, 0) * probabilities, terms, weight)
    return loss


def class_terms(scores: Entries, weight: Operand | None) -> Tensor:
    """Return where the score of a class and its weight are specified."""
    mask = scores.mask
    return mask & along_classes(weight.mask, mask.ndim) if isinstance(weight, Entries) else mask


def class_sum(values: Tensor, terms: Tensor, weight: Operand | None) -> tuple[Entries, Tensor]:
    """The weighted sum over the classes, and their number (at least 1)."""
    dim = class_dim(values.ndim)
    if weight is not None:
        values = values * torch.where(terms, along_classes(filled(weight), values.ndim), 0)
    return sum(Entries(values, terms), dim), terms.sum(dim).clamp(min=1)


def along_classes(weight: Tensor, ndim: int) -> Tensor:
    """One value per class, broadcast along their dimension."""
    return weight.reshape(-1, *(1,) * (ndim - 2)) if ndim > 2 else weight


#: Both step by step, as PyTorch computes them.
OF_PROBABILITIES = pointwise(F.binary_cross_entropy, "input target weight", 0.5)
OF_LOGITS = pointwise(F.binary_cross_entropy_with_logits, "input target weight pos_weight")


def binary_cross_entropy(input: Operand, target: Operand, reduction: str, **weights: Any) -> Operand:
    """``-weight (target log(input) + (1 - target) log(1 - input))``; the mean divides by the number of positions."""
    size, wanted = values_of(target).shape, values_of(input).shape
    if size != wanted:
        raise ValueError(
            f"Using a target size ({size}) that is different to the input size ({wanted}) is deprecated. "
            "Please ensure they have the same size."
        )
    if weights.get("weight") is not None:
        torch.broadcast_shapes(wanted, values_of(weights["weight"]).shape)
    return OF_PROBABILITIES(reduction, input=input, target=target, **weights)


def binary_cross_entropy_with_logits(
    input: Operand, target: Operand, reduction: str, **weights: Operand | None
) -> Operand:
    """The binary cross entropy of ``sigmoid(input)``; an unspecified weight leaves its positions unspecified."""
    size, wanted = values_of(target).shape, values_of(input).shape
    if size != wanted:
        raise ValueError(f"Target size ({size}) must be the same as input size ({wanted})")
    return OF_LOGITS(reduction, input=input, target=target, **weights)


def linear_cross_entropy(
    input: Operand,
    linear_weight: Operand,
    target: Operand,
    *,
    reduction: str,
    linear_bias: Operand | None = None,
    weight: Operand | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Operand:
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)``, whatever the ``options``."""
    shape = (*values_of(input).shape[:-1], *values_of(linear_weight).shape[:-1])
    if mode() == "eager":  # torch raises the errors
        named = {"linear_bias": linear_bias, "weight": weight}
        shown: dict[str, Any] = {k: None if x is None else values_of(x).to("meta") for k, x in named.items()}
        operands = (values_of(x).to("meta") for x in (input, linear_weight, target))
        F.linear_cross_entropy(*operands, **shown, reduction="none")
    labelled = values_of(target).shape != shape
    if not labelled and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    outputs = math.prod(shape[-1:] if values_of(input).ndim == 1 else shape[1:])
    rows = reshaped(linear_weight, (outputs, values_of(input).shape[-1]))
    bias = None if linear_bias is None else reshaped(linear_bias, (outputs,))
    masked = any(isinstance(operand, Entries) for operand in (input, rows, bias))
    outer: Any = linear if masked else F.linear
    logits = outer(input, rows, bias)
    logits, dtype = reshaped(logits, shape), values_of(logits).dtype
    if dtype in HALVES:
        logits, target, weight = cast((logits, target, weight), torch.float32)
    loss = cross_entropy(logits, target, reduction, weight, ignored, label_smoothing)
    return converted(loss, dtype)  # type: ignore[no-any-return]


def reshaped(operand: Any, shape: tuple[int, ...]) -> Any:
    """Reshape an operand, masked or plain."""
    return rearranged(operand, lambda part: part.reshape(shape))


PATTERN = (
    "per position: the label, not ignored, and the class it points at are specified (probabilities: one class is); "
    "reduced: a plain scalar"
)
SOFTMAX = "(softmax - target) / count over the specified classes"
LABELS = "-weight / sum of weights at the entry of each label"
BINARY = "torch's, divided by the count, where all operands are specified"
LAYER = "that of cross_entropy, through the layer"
ORDER = "input target weight pos_weight reduction"

OPERATIONS = (
    loss_record(F.cross_entropy, cross_entropy, SOFTMAX, PATTERN),
    loss_record(F.nll_loss, nll_loss, LABELS, PATTERN, widens=False),
    loss_record(F.binary_cross_entropy, binary_cross_entropy, BINARY),
    loss_record(
        F.binary_cross_entropy_with_logits,
        binary_cross_entropy_with_logits,
        BINARY,
        order=ORDER,
    ),
    *(  # since PyTorch 2.13
        loss_record(getattr(F, name), linear_cross_entropy, LAYER, PATTERN, widens=False)
        for name in ("linear_cross_entropy",)
        if hasattr(F, name)
    ),
)
