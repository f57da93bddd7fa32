"""Distances, one pair of vectors at a time: torch's own function on the coordinates that both specify."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.deletion_oracle import nothing_is_left
from tests.laws.evaluation import NUMBER

__all__ = ["distance"]

Result = tuple[Tensor, list[Tensor]]

#: The arguments behind the operands.
NAMES = {
    "dist": "p",
    "pairwise_distance": "p eps keepdim",
    "cosine_similarity": "dim eps",
    "cdist": "p compute_mode",
    "pdist": "p",
}


def distance(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Find the pairs, delete, measure."""
    args, kwargs = call.with_tensors(leaves)
    name = entry.operation.name.rpartition(".")[2]
    dense = entry.function(*args, **kwargs)
    options = dict(zip(NAMES[name].split(), args[len(leaves) :], strict=False))
    options |= {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}

    def measured(a: Tensor, b: Tensor) -> Tensor:
        """torch on what is left of a pair; where nothing is, a zero without gradient."""
        if not a.numel():
            return torch.zeros((), dtype=dense.dtype) + (a.sum() + b.sum()) * 0
        pair = [torch.stack([a, b])] if name == "pdist" else [a[None], b[None]] if name == "cdist" else [a, b]
        return entry.function(*pair, **options).reshape(())

    if name == "pdist":
        rows = torch.triu_indices(len(leaves[0]), len(leaves[0]), 1)
        leaves, masks = ([part[row] for row in rows] for (part,) in (leaves, masks))
    elif name == "cdist":
        leaves, masks = ([a.unsqueeze(-2), b.unsqueeze(-3)] for a, b in (leaves, masks))
    (x, y), both = torch.broadcast_tensors(*leaves), torch.logical_and(*torch.broadcast_tensors(*masks))
    if name == "dist":
        nothing = nothing_is_left(lambda empty: entry.function(empty, empty, **options), x)
        some = measured(x[both], y[both])
        return some if both.any() or nothing is None else nothing, [both.any() if nothing is None else NUMBER]
    if both.ndim == 0:
        return dense, [both]
    keepdim, dim = options.pop("keepdim", False), options.pop("dim", 1 if name == "cosine_similarity" else -1)
    options |= {"dim": 0} if name == "cosine_similarity" else {}
    mask = both.any(dim, keepdim)
    pairs = zip(*(t.movedim(dim, -1).reshape(mask.numel(), t.shape[dim]) for t in (x, y, both)), strict=True)
    found = [measured(a[m], b[m]) for a, b, m in pairs]
    return torch.stack(found).reshape(mask.shape) if found else dense, [mask]
