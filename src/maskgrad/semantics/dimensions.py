"""How the argument ``dim`` is read, and what reducing over it does to shapes and masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_dim(dim: int, ndim: int) -> int:
    """One dimension counted from the front; a 0-d tensor has dimensions 0 and -1, as in torch."""
    rank = max(ndim, 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    return dim % rank


def as_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions to reduce, counted from the front; None and () mean all of them."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int):
        dims: tuple[int, ...] = (as_dim(dim, ndim),)
    else:
        dims = tuple([as_dim(d, ndim) for d in dim]) or tuple(range(ndim))
        if len(set(dims)) != len(dims):
            raise RuntimeError(
                f"dim must not name a dimension twice, found {tuple(dim)} for a tensor of {ndim} dimensions"
            )
    return dims if ndim else ()


def drop(kept: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Remove the dimensions of size 1 that a reduction with keepdim=True left."""
    return kept.squeeze(dims) if dims else kept
