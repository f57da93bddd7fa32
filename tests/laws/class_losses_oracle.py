"""Losses of classes, one position at a time: its classes are deleted, its label counts among those that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.reduced import Named, reduced

__all__ = [
    "cross_entropy", "linear_cross_entropy", "multi_margin", "multilabel_margin", "multilabel_soft_margin",
    "nll",
]  # fmt: skip

Result = tuple[Tensor, Tensor]


def columns(x: Tensor) -> Tensor:
    """The classes last, the positions in one dimension before them."""
    return x.movedim(1 if x.ndim > 1 else 0, -1).reshape(-1, x.shape[1 if x.ndim > 1 else 0])


def positions(x: Tensor) -> list[int]:
    return [size for d, size in enumerate(x.shape) if d != (1 if x.ndim > 1 else 0)]


def weights_of(a: Named, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if a["weight"] is None:
        return torch.ones(classes, dtype=dtype), torch.ones(classes, dtype=torch.bool)
    return a["weight"], a.masks["weight"]


def labelled(a: Named, scores: Tensor, present: Tensor) -> Iterator[tuple[Tensor, Tensor, int | None]]:
    """Scores, which of them are specified, and the label (None: unspecified), position by position."""
    labels, known = a["target"].reshape(-1).tolist(), a.masks["target"].reshape(-1).tolist()
    for x, m, label, k in zip(columns(scores), columns(present), labels, known, strict=True):
        yield x, m, label if k else None


def nll(a: Named) -> Result:
    """What the label reads, times its weight."""
    return of_labels(a, lambda scores, left: scores[left])


def cross_entropy(a: Named) -> Result:
    """The log-softmax of the classes that are left, read by the label or summed with the probabilities."""
    if a["input"].shape == a["target"].shape:
        return expected_cross_entropy(a)
    return of_labels(a, lambda scores, left: torch.log_softmax(scores[left], 0))


def of_labels(a: Named, of_left: Callable[[Tensor, Tensor], Tensor]) -> Result:
    x, smoothing = a["input"], a.values.get("label_smoothing", 0)
    w, w_mask = weights_of(a, x.shape[1 if x.ndim > 1 else 0], x.dtype)
    losses: list[Tensor | None] = []
    counts: list[Tensor | None] = []
    for logits, m, label in labelled(a, x, a.masks["input"]):
        counted = label is not None and label != a["ignore_index"] and bool(m[label] & w_mask[label])
        counts.append(w[label] if counted else None)
        if not counted:
            losses.append(None)
            continue
        scores = of_left(logits, m)
        loss = -w[label] * scores[int(m[:label].sum())]
        smooth = -(w[m] * scores)[w_mask[m]].mean() if smoothing else 0
        losses.append((1 - smoothing) * loss + smoothing * smooth)
    return reduced(losses, positions(x), a["reduction"], x.dtype, counts)


def expected_cross_entropy(a: Named) -> Result:
    """Probabilities for labels: a sum over the classes of which logit, probability and weight are specified."""
    x, smoothing = a["input"], a["label_smoothing"]
    w, w_mask = weights_of(a, x.shape[1 if x.ndim > 1 else 0], x.dtype)
    losses: list[Tensor | None] = []
    parts = [columns(part) for part in (x, a.masks["input"], a["target"], a.masks["target"])]
    for logits, m, probabilities, p_mask in zip(*parts, strict=True):
        terms = m & p_mask & w_mask
        if not terms.any():
            losses.append(None)
            continue
        scores = torch.zeros_like(logits).masked_scatter(m, torch.log_softmax(logits[m], 0))[terms]
        smoothed = probabilities[terms] * (1 - smoothing) + smoothing / int(terms.sum())
        losses.append(-(scores * smoothed * w[terms]).sum())
    return reduced(losses, positions(x), a["reduction"], x.dtype)


def linear_cross_entropy(a: Named) -> Result:
    """The layer's outputs, product by product; then the cross entropy."""
    x, weight = a["input"], a["linear_weight"]
    known, k = a.masks["input"], a.masks["linear_weight"].reshape(-1, x.shape[-1])
    logits = F.linear(torch.where(known, x, 0), torch.where(k, weight.reshape(k.shape), 0))
    present = F.linear(known.double(), k.double()) > 0
    if a["linear_bias"] is not None:
        logits, present = logits + a["linear_bias"].reshape(-1), present & a.masks["linear_bias"].reshape(-1)
    shape = (*x.shape[:-1], *weight.shape[:-1])
    rest: dict[str, Any] = {
        "input": logits.reshape(shape),
        "ignore_index": -100 if a["ignore_index"] is None else a["ignore_index"],
    }
    return cross_entropy(Named({**a.values, **rest}, {**a.masks, "input": present.reshape(shape)}))


def at_least_one_class(x: Tensor) -> Tensor:
    """torch takes a number for a sample of one class."""
    return x if x.ndim else x.reshape(1)


def multi_margin(a: Named) -> Result:
    x, present = at_least_one_class(a["input"]), at_least_one_class(a.masks["input"])
    losses: list[Tensor | None] = []
    w, w_mask = weights_of(a, x.shape[-1], x.dtype)
    for scores, m, label in labelled(a, x, present):
        if label is None or not bool(m[label] & w_mask[label]):
            losses.append(None)
            continue
        place = m[:label].sum()
        one = F.multi_margin_loss(scores[m][None], place[None], a["p"], a["margin"], reduction="sum")
        losses.append(w[label] * one)
    return reduced(losses, x.shape[:-1], a["reduction"], x.dtype)


def multilabel_margin(a: Named) -> Result:
    """Pairs of a label and another class, both specified, divided by the number of classes that are left."""
    x = at_least_one_class(a["input"])
    width = x.shape[-1]
    parts = [part.reshape(-1, width) for part in (x, a.masks["input"], a["target"], a.masks["target"])]
    losses: list[Tensor | None] = []
    for scores, m, labels, listed in zip(*parts, strict=True):
        if not m.any() or not listed.any():
            losses.append(None)
            continue
        remaining = labels[listed].tolist()
        end = remaining.index(-1) if -1 in remaining else len(remaining)
        meant = [label for label in remaining[:end] if m[label]]
        others = [c for c in range(width) if m[c] and c not in meant]
        total = sum((F.relu(1 - scores[y] + scores[c]) for y in meant for c in others), scores.new_zeros(()))
        losses.append(total / int(m.sum()))
    return reduced(losses, x.shape[:-1], a["reduction"], x.dtype)


def multilabel_soft_margin(a: Named) -> Result:
    x = a["input"]
    names = [name for name in ("input", "target", "weight") if a[name] is not None]
    rows = math.prod(x.shape[:-1]), x.shape[-1]
    values = [a[name].expand(x.shape).reshape(rows) for name in names]
    masks = [a.masks[name].expand(x.shape).reshape(rows) for name in names]
    losses: list[Tensor | None] = []
    for i in range(len(values[0])):
        left = torch.stack([mask[i] for mask in masks]).all(0)
        row = [value[i][left] for value in values]
        losses.append(F.multilabel_soft_margin_loss(*row, reduction="sum") if left.any() else None)
    return reduced(losses, x.shape[:-1], a["reduction"], x.dtype)
