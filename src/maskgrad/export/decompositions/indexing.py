"""Entries chosen or written by position."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from maskgrad.versions import is_before

__all__ = ["BODIES"]


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Written by their place in the tensor read row by row."""
    flat, at, new = x.flatten(), index.flatten(), source.flatten()
    at = torch.where(at < 0, at + flat.shape[0], at)
    written = flat.scatter_add(0, at, new) if accumulate else flat.scatter(0, at, new)
    return written.reshape(x.shape)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The places of the first ``size`` entries that are not zero, by their rank among them."""
    chosen = (x != 0).flatten()
    rank = torch.cumsum(chosen.to(torch.int64), 0) - 1
    row = torch.where(chosen & (rank < size), rank, size)
    places = torch.arange(row.shape[0], device=x.device)
    columns = []
    for extent in reversed(x.shape):
        column = torch.full((size + 1,), fill_value, dtype=torch.int64, device=x.device)
        columns.append(column.scatter(0, row, places % extent)[:size])
        places = torch.div(places, extent, rounding_mode="floor")
    return (
        torch.stack(columns[::-1], 1)
        if columns
        else torch.zeros((size, 0), dtype=torch.int64, device=x.device)
    )


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Chosen by places that are known beforehand, if the size is; since 2.15 PyTorch looks for them in a mask."""
    if isinstance(x.shape[0], torch.SymInt):
        return NotImplemented
    if r == 0:
        return x[:0]
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor([*choose(range(x.shape[0]), r)], dtype=torch.int64, device=x.device)
    return x[places.reshape(-1, r)]


BODIES: dict[str, Callable[..., Tensor]] = {"put": put, "nonzero_static": nonzero_static}
if not is_before(torch.__version__, "2.15"):  # an older one writes it itself, and takes no constant in a body
    BODIES["combinations"] = combinations
