"""Margins between the classes of a sample: deletion along the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from maskgrad.semantics.compaction import specified_first
from maskgrad.semantics.entries import Entries, Operand, mask_of, rearranged, values_of
from maskgrad.semantics.losses.cross_entropy import class_dim, read_labels
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss

if TYPE_CHECKING:
    from torch import Tensor


#: No label is ever this number, so none is ignored.
NONE_IGNORED = -(2**63)


def multi_margin_loss(
    input: Operand,
    target: Operand,
    reduction: str,
    p: int = 1,
    margin: float = 1.0,
    weight: Operand | None = None,
) -> Operand:
    """``weight[y] max(0, margin - x[y] + x[i])^p`` summed over the other classes, divided by the number of all.

    Classes are the specified ones; a label that points at another leaves its sample unspecified.
    """
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and values_of(weight).ndim != 1:
        raise ValueError("weight must be one-dimensional")
    input = _at_least_one_class(input)
    values, labels = values_of(input), values_of(target)
    if values.ndim not in (1, 2) or not values.shape[-1] or labels.numel() != values.shape[:-1].numel():
        F.multi_margin_loss(values.detach(), torch.zeros_like(labels))  # PyTorch says what is wrong
    labelled = read_labels(input, _like(target, values.shape[:-1]), weight, NONE_IGNORED)
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
    """PyTorch takes a number for a sample of one class."""
    return _like(input, torch.Size([1])) if values_of(input).ndim == 0 else input


def _like(target: Operand, shape: torch.Size) -> Operand:
    """The operand in another shape: PyTorch takes a single label with or without its dimension."""
    return rearranged(target, lambda part: part.reshape(shape))  # type: ignore[no-any-return]


def multilabel_margin_loss(input: Operand, target: Operand, reduction: str) -> Operand:
    """``max(0, 1 - x[y] + x[i])`` summed over labels ``y`` and other classes ``i``, divided by the number of classes.

    ``target`` lists the labels of each sample, up to the first -1. An unspecified label is deleted from the list, and
    so is one whose class is unspecified.
    """
    input, target = _at_least_one_class(input), _at_least_one_class(target)
    values, labels = values_of(input), values_of(target)
    if labels.shape != values.shape or labels.dtype != torch.int64 or not values.ndim or not values.shape[-1]:
        F.multilabel_margin_loss(values.detach(), torch.zeros_like(labels))  # PyTorch says what is wrong
    classes, listed = mask_of(input), mask_of(target)
    specified = classes.any(-1) & listed.any(-1)
    x = torch.where(classes, values, float("-inf"))  # no margin is violated by -inf
    x = torch.where(specified.unsqueeze(-1), x, 0)
    remaining = _remaining(labels, listed, classes)
    if torch.compiler.is_compiling():
        total = _violations(x, remaining)
    else:
        total = F.multilabel_margin_loss(x, remaining, reduction="none") * values.shape[-1]
    return reduce_loss(Entries(total / classes.sum(-1).clamp(min=1), specified), reduction)


def _violations(x: Tensor, labels: Tensor) -> Tensor:
    """The sum over pairs, which PyTorch's kernel takes too; compiled, torch 2.13 counts pairs after the last label."""
    listed = labels >= 0
    label = labels.clamp(min=0)
    is_label = torch.zeros_like(labels).scatter_add(-1, label, listed.to(labels.dtype)) > 0
    distance = F.relu(1 - x.gather(-1, label).unsqueeze(-1) + x.unsqueeze(-2))
    pairs = listed.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    return torch.where(pairs, distance, 0).sum((-2, -1))


def _remaining(labels: Tensor, listed: Tensor, classes: Tensor) -> Tensor:
    """The labels that are left, in their order, before the first -1."""
    size = labels.shape[-1]
    before_end = ((labels == -1) & listed).cumsum(-1) == 0
    nearest = labels.clamp(0, size - 1)
    kept = listed & before_end & (classes.gather(-1, nearest) | (labels != nearest))
    return torch.where(kept, labels, -1).gather(-1, specified_first(kept, kept.ndim - 1))


OPERATIONS = (
    loss_record(
        F.multi_margin_loss,
        multi_margin_loss,
        "torch's, over the specified classes",
        pattern="per sample: the label and its class are specified; reduced: a plain number",
    ),
    loss_record(
        F.multilabel_margin_loss,
        multilabel_margin_loss,
        "torch's, over the specified classes and labels",
        pattern="per sample: a class and a label are specified; reduced: a plain number",
    ),
)
