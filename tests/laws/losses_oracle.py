"""Losses, by deletion: torch's own loss of the positions, classes, features and time steps that are left."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.class_losses_oracle import (
    cross_entropy,
    linear_cross_entropy,
    multi_margin,
    multilabel_margin,
    multilabel_soft_margin,
    nll,
)
from tests.laws.ctc_oracle import ctc
from tests.laws.evaluation import NUMBER
from tests.laws.reduced import Named, reduced
from tests.laws.slices import given

__all__ = ["loss"]

Result = tuple[Tensor, Tensor]


def loss(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The value of a loss and its mask."""
    name = entry.name.removeprefix("nn.functional.")
    function = getattr(F, name)
    named = [given(function, *call.with_tensors(tensors)) for tensors in (leaves, masks)]
    values, mask = RULES.get(name, functools.partial(each_position, name))(Named(*named))
    args, kwargs = call.with_tensors([leaf.detach() for leaf in leaves])
    return values.to(entry.function(*args, **kwargs).dtype), [mask]


#: Losses of single positions, with their tensors.
POSITIONS = {
    "mse_loss": "input target weight",
    "l1_loss": "input target weight",
    "smooth_l1_loss": "input target",
    "huber_loss": "input target weight",
    "poisson_nll_loss": "input target",
    "gaussian_nll_loss": "input target var",
    "binary_cross_entropy": "input target weight",
    "binary_cross_entropy_with_logits": "input target weight pos_weight",
    "kl_div": "input target",
    "soft_margin_loss": "input target",
    "margin_ranking_loss": "input1 input2 target",
    "hinge_embedding_loss": "input target",
}


def each_position(name: str, a: Named) -> Result:
    """torch's loss of the positions at which every operand is specified."""
    operands = [operand for operand in POSITIONS[name].split() if isinstance(a[operand], Tensor)]
    values, masks = {o: a[o] for o in operands}, {o: a.masks[o] for o in operands}
    if name == "gaussian_nll_loss" and "var" in values and values["var"].ndim == values["input"].ndim - 1:
        values["var"], masks["var"] = values["var"].unsqueeze(-1), masks["var"].unsqueeze(-1)
    shape = torch.broadcast_shapes(*(value.shape for value in values.values()))
    mask = functools.reduce(torch.logical_and, [m.expand(shape) for m in masks.values()])
    left = {o: value.expand(shape)[mask] for o, value in values.items()}
    others = {key: value for key, value in a.values.items() if key not in values and key != "reduction"}
    reduction = a["reduction"]
    if not mask.any():
        zeros = left["input" if "input" in left else "input1"].new_zeros(shape if reduction == "none" else ())
        if reduction == "none":
            return zeros, mask
        return zeros if reduction == "sum" else zeros + math.nan, NUMBER
    if reduction == "batchmean":
        rows = mask.reshape(len(mask), -1).any(1).sum() if mask.ndim else 1
        return F.kl_div(**left, **others, reduction="sum") / rows, NUMBER
    result = getattr(F, name)(**left, **others, reduction=reduction)
    if reduction == "none":
        return torch.zeros(shape, dtype=result.dtype).masked_scatter(mask, result), mask
    return result, NUMBER


def rows_of(a: Named, *names: str) -> tuple[torch.Size, list[Tensor]]:
    """The shape without features; the operands as rows of them, and their masks. A number is its only feature."""
    sides = (torch.broadcast_tensors(*(side[name] for name in names)) for side in (a.values, a.masks))
    parts = [part if part.ndim else part.reshape(1) for side in sides for part in side]
    shape = parts[0].shape[:-1]
    return shape, [part.reshape(math.prod(shape), part.shape[-1]) for part in parts]


def of_rows(a: Named, shape: torch.Size, losses: list[Tensor | None]) -> Result:
    dtype = next((loss.dtype for loss in losses if loss is not None), torch.get_default_dtype())
    return reduced(losses, shape, a["reduction"], dtype)


def cosine_embedding(a: Named) -> Result:
    """One pair at a time, over the features that both sides have."""
    shape, rows = rows_of(a, "input1", "input2")
    labels, known = (side["target"].expand(shape).reshape(-1) for side in (a.values, a.masks))
    losses: list[Tensor | None] = []
    for x, y, x_mask, y_mask, label, k in zip(*rows, labels, known, strict=True):
        both = x_mask & y_mask & k
        pair = x[both][None], y[both][None], label[None]
        losses.append(F.cosine_embedding_loss(*pair, a["margin"], reduction="sum") if both.any() else None)
    return of_rows(a, shape, losses)


def triplet(a: Named) -> Result:
    """One triplet at a time, each distance over the features that both sides have."""
    shape, rows = rows_of(a, "anchor", "positive", "negative")
    measure = a.values.get("distance_function")
    options = {"p": a.values.get("p", 2), "eps": a.values.get("eps", 1e-6)}

    def distance(x: Tensor, y: Tensor, left: Tensor) -> Tensor | None:
        if not left.any():
            return None
        if measure is None:
            return F.pairwise_distance(x[left], y[left], **options)
        return measure(x[left][None], y[left][None])[0]

    losses: list[Tensor | None] = []
    for x, p, n, x_mask, p_mask, n_mask in zip(*rows, strict=True):
        near, *far = distance(x, p, x_mask & p_mask), distance(x, n, x_mask & n_mask)
        far += [distance(p, n, p_mask & n_mask)] if a["swap"] else []
        if near is None or any(one is None for one in far):
            losses.append(None)
            continue
        losses.append(torch.clamp_min(a["margin"] + near - functools.reduce(torch.minimum, far), 0))
    return of_rows(a, shape, losses)


RULES: dict[str, Callable[[Any], Result]] = {
    "cross_entropy": cross_entropy,
    "nll_loss": nll,
    "linear_cross_entropy": linear_cross_entropy,
    "multi_margin_loss": multi_margin,
    "multilabel_margin_loss": multilabel_margin,
    "multilabel_soft_margin_loss": multilabel_soft_margin,
    "cosine_embedding_loss": cosine_embedding,
    "triplet_margin_loss": triplet,
    "triplet_margin_with_distance_loss": triplet,
    "ctc_loss": ctc,
}
