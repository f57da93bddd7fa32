"""torch_geometric's ``scatter``, on which its pooling, aggregations and norms rest, by deletion.

It adds up and divides by counts that it makes itself, of all rows. On a MaskedTensor the specified entries alone go
through it, one by one, each to the entry of the result that its row goes to. A group of which nothing is left is
unspecified; one that never had a row is what torch_geometric makes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["install"]


def _on_entries(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scatter(src: Any, index: Any, dim: int = 0, dim_size: Any = None, reduce: str = "sum") -> Any:
        if isinstance(index, MaskedTensor) and bool(index.mask.all()):  # zeros made from a MaskedTensor
            index = index._dense()[0]
        if not (isinstance(src, MaskedTensor) or isinstance(index, MaskedTensor)):
            return original(src, index, dim, dim_size, reduce)
        if isinstance(index, MaskedTensor) or index.dim() != 1:
            found = f"{type(index).__name__} with {index.dim()} dimensions"
            raise UnsupportedOperationError(
                "torch_geometric.utils.scatter",
                f"index must be a plain tensor with one dimension, found a {found}",
                "Leave out what goes nowhere: scatter(src[keep], index[keep]).",
            )
        values, mask = src._dense()
        dim = dim + values.dim() if dim < 0 else dim
        if not 0 <= dim < values.dim() or index.numel() != values.shape[dim]:
            raise ValueError(
                f"index must have an entry for each of the {tuple(values.shape)} along dimension {dim}, found "
                f"{index.numel()}"
            )
        if dim_size is None:
            dim_size = int(index.max()) + 1 if index.numel() else 0
        shape = (*values.shape[:dim], int(dim_size), *values.shape[dim + 1 :])
        places = torch.arange(torch.Size(shape).numel(), device=values.device).view(shape)
        places = places.index_select(dim, index)
        result = original(values[mask], places[mask], 0, torch.Size(shape).numel(), reduce).view(shape)
        specified = torch.zeros(shape, dtype=torch.bool, device=values.device)
        specified.index_fill_(
            dim, torch.arange(shape[dim], device=index.device)[_rows(index, shape[dim]) == 0], True
        )
        specified.view(-1)[places[mask]] = True
        return of_entries(result, specified)

    return scatter


def _rows(index: torch.Tensor, groups: int) -> torch.Tensor:
    """How many rows go to each group."""
    return torch.bincount(index, minlength=groups)


def install() -> None:
    """Take the place of ``torch_geometric.utils.scatter``, wherever it has been imported."""
    exchange("torch_geometric.utils._scatter.scatter", _on_entries)
