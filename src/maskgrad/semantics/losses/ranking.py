"""Losses that rank or compare pairs: features are deleted from both sides of a distance, pairs from the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.callbacks import call_back
from maskgrad.semantics.distances import pairwise_distance
from maskgrad.semantics.entries import Entries, Operand, fill, intersection, mask_of, values_of
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss
from maskgrad.semantics.losses.regression import pointwise

if TYPE_CHECKING:
    from collections.abc import Callable


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
    # A feature of zero adds nothing to a product or a length.
    first, second, features = _common(input1, input2, 0)
    pairs = features.any(-1) if features.ndim else features
    both = pairs & known if labels.shape == pairs.shape else pairs
    shown = both.unsqueeze(-1) if features.ndim else both
    loss = F.cosine_embedding_loss(
        torch.where(shown, first, 0),
        torch.where(shown, second, 0),
        torch.where(known, labels, 1),
        margin,
        reduction="none",
    )
    return reduce_loss(Entries(loss, both), reduction)


def _common(
    first: Operand, second: Operand, filler: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two operands that are safe wherever one of them is unspecified, and where both are specified."""
    shape = torch.broadcast_shapes(values_of(first).shape, values_of(second).shape)
    mask = intersection((first, second))
    if mask is None:
        plain = torch.ones((), dtype=torch.bool, device=values_of(first).device)
        return values_of(first), values_of(second), plain.expand(shape)
    return fill(first, mask, filler), fill(second, mask, filler), mask.expand(shape)


def distance(first: Operand, second: Operand, p: float = 2, eps: float = 1e-6) -> Operand:
    """The p-norm of ``first - second + eps`` over the last dimension, of the features that both sides have."""
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
    """The same with a distance of the user, who gets MaskedTensors where the operands are masked."""
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
    """The loss of each triplet of which every distance is specified."""
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
    if mask is None:  # the user's distance has filled what was missing
        mask = torch.ones((), dtype=torch.bool, device=values_of(near).device)
    close, apart, *between = (fill(operand, mask, 1) for operand in distances)
    if between:
        apart = torch.minimum(apart, between[0])
    loss = torch.clamp_min(margin + close - apart, 0)
    return Entries(loss, mask.expand(loss.shape))


DISTANCES = "per pair: each distance has a feature that both sides have; reduced: a plain number"
GRADIENT = "torch's, over the specified features and pairs"

OPERATIONS = (
    loss_record(
        F.margin_ranking_loss,
        margin_ranking_loss,
        "-target / count and target / count where the margin is violated",
    ),
    loss_record(
        F.hinge_embedding_loss,
        pointwise(F.hinge_embedding_loss, "input target"),
        "torch's, divided by the count, where both are specified",
        widens=False,  # nothing cancels in an entry, and its rounding is PyTorch's
    ),
    loss_record(F.cosine_embedding_loss, cosine_embedding_loss, GRADIENT, DISTANCES),
    loss_record(F.triplet_margin_loss, triplet_margin_loss, GRADIENT, DISTANCES),
    loss_record(
        F.triplet_margin_with_distance_loss,
        triplet_margin_with_distance_loss,
        GRADIENT,
        DISTANCES,
        widens=False,  # the function that measures is the user's
    ),
)
