"""Distances and similarities over the coordinates in which both vectors are specified; nothing is rescaled."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.entries import Entries, Operand, all_specified, filled, rearranged, safe, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.norms import of_an_extreme, vector_norm
from maskgrad.semantics.numbers import Number
from maskgrad.semantics.signatures import bound

PATTERN = "specified where the two vectors have a coordinate in common"
GRADIENT = "torch's, over the common coordinates"


def difference(x: Operand, y: Operand) -> Entries:
    """``x - y``, where both are specified."""
    values = safe(x) - safe(y)
    return Entries(values, all_specified(x, y).expand(values.shape))


def minkowski(difference: Entries, p: float) -> Entries:
    """The p-norm along the last dimension."""
    if p == 0:  # the number of differences, NaN if unknown; linalg.vector_norm counts NaN as a difference
        differs = filled(difference).abs().ceil().clamp(max=1)
        return Entries(differs.sum(-1), any_of(difference.mask, (-1,)))
    return vector_norm(difference, p, -1)


def cdist(
    x1: Operand, x2: Operand, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Entries:
    """``cdist``: every row of ``x1`` with every row of ``x2``, by their differences in every mode."""
    # torch raises the errors
    torch.cdist(values_of(x1)[..., :0, :], values_of(x2)[..., :0, :], p, compute_mode)
    rows, others = (rearranged(x, lambda part: part.unsqueeze(d)) for x, d in ((x1, -2), (x2, -3)))  # noqa: B023
    return minkowski(difference(rows, others), p)


def pdist(input: Entries, p: float = 2.0) -> Entries:
    """``pdist``: every pair of rows, once."""
    F.pdist(input.values[:0].float(), p)  # torch raises the errors
    count = len(input.values)
    i, j = torch.triu_indices(count, count, 1, device=input.values.device)
    one, other = (Entries(input.values.index_select(0, k), input.mask.index_select(0, k)) for k in (i, j))
    return minkowski(difference(one, other), p)


def dist(input: Operand, other: Operand, p: float = 2) -> Entries:
    """``dist``: the p-norm of the whole difference."""
    return vector_norm(difference(input, other), p)


def pairwise_distance(
    x1: Operand, x2: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Entries:
    """``pairwise_distance``: the p-norm of ``x1 - x2 + eps`` along the last dimension."""
    values, mask = difference(x1, x2)
    return vector_norm(Entries(values + eps, mask), p, -1, keepdim)


def cosine_similarity(x1: Operand, x2: Operand, dim: int = 1, eps: float = 1e-8) -> Entries:
    """``cosine_similarity``: products and both norms over the common coordinates."""
    both = all_specified(x1, x2).expand(torch.broadcast_shapes(values_of(x1).shape, values_of(x2).shape))
    present = any_of(both, (dim,), keepdim=True)
    # two empty vectors become vectors of ones, with finite derivatives
    neutral = present.logical_not().int()
    vectors = [torch.where(both, values_of(x), neutral) for x in (x1, x2)]
    return Entries(F.cosine_similarity(vectors[0], vectors[1], dim, eps), present.squeeze(dim))


def _of_an_extreme(*args: Any, **kwargs: Any) -> bool:
    return of_an_extreme(None, bound("input other p", args, kwargs).get("p", 2))


NUMBER = Number(0, dim=None, unless=_of_an_extreme)
OPERATIONS = (
    of_rule(cdist, "distances", PATTERN, GRADIENT, padded="mask"),
    of_rule(dist, "distances", "a plain scalar (order inf or below 0: masked)", GRADIENT, number=NUMBER),
    *(
        record(f"nn.functional.{rule.__name__}", "distances", rule, PATTERN, GRADIENT, padded=padded)
        for rule, padded in ((pdist, ""), (pairwise_distance, "mask"), (cosine_similarity, "mask"))
    ),
)
