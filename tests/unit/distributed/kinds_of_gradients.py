"""Gradients of every kind, with garbage where nothing is specified, and what they mean: dense values and a mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import maskgrad as mg

SHAPE = (6, 4)
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)
SPARSE = ("csr", "csc", "bsr", "bsc")
LISTED = ("rows", "entries", "empty rows", "masked rows")
KINDS = (
    "none",
    "dense",
    *LISTED,
    "mask",
    "nothing specified",
    *SPARSE,
    *(f"masked {name}" for name in SPARSE),
)


class Meaning(NamedTuple):
    """What a gradient says: (6, 4) values in float64 (or complex128), 0 where unspecified, and a mask."""

    values: Tensor
    mask: Tensor


def random(generator: torch.Generator, *size: int, dtype: torch.dtype) -> Tensor:
    """Numbers that halves hold exactly."""
    return torch.randint(-32, 33, size, generator=generator).to(dtype) / 8


def gradient(kind: str, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Meaning]:
    """A gradient of a kind, different on each rank, and what it means."""
    draw = torch.Generator().manual_seed(100 * rank + KINDS.index(kind))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    nothing = Meaning(torch.zeros(SHAPE, dtype=wide), torch.zeros(SHAPE, dtype=torch.bool))
    if kind == "none":
        return None, nothing
    if kind in LISTED:  # some of them twice
        number, dims = 5 * (kind != "empty rows"), 2 if kind == "entries" else 1
        at = torch.stack([torch.randint(0, size, (number,), generator=draw) for size in SHAPE[:dims]])
        values = random(draw, number, *SHAPE[dims:], dtype=dtype)
        coo = torch.sparse_coo_tensor(at, values, SHAPE, check_invariants=True)
        mask = nothing.mask.index_put(tuple(at), torch.tensor(True))
        total = nothing.values.index_put(tuple(at), values.to(wide), accumulate=True)
        return (mg.from_sparse(coo) if kind == "masked rows" else coo), Meaning(total, mask)
    values = random(draw, *SHAPE, dtype=dtype).t().contiguous().t()
    if kind == "dense":
        return values, Meaning(values.to(wide), ~nothing.mask)
    blocks = torch.rand(3, 2, generator=draw) < (0.5 if kind != "nothing specified" else 0)
    mask = blocks.repeat_interleave(2, 0).repeat_interleave(2, 1)
    garbage = torch.tensor(GARBAGE).repeat(6).reshape(SHAPE).to(dtype)
    masked = mg.masked(torch.where(mask, values, garbage), mask)
    meaning = Meaning(torch.where(mask, values, 0).to(wide), mask)
    layout = kind.removeprefix("masked ")
    if layout not in SPARSE:
        return masked, meaning
    blocksize = (2, 2) if layout.startswith("bs") else None
    stored = masked.to_sparse(getattr(torch, f"sparse_{layout}"), blocksize=blocksize)
    return (stored if kind.startswith("masked") else stored.to_sparse_tensor()), meaning


def meaning_of(gradient: Any) -> Meaning | None:
    """Read a result by other means than the library's: position by position."""
    if gradient is None:
        return None
    if isinstance(gradient, mg.MaskedTensor):
        return Meaning(torch.where(gradient.mask, gradient.filled(0), 0), gradient.mask)
    if gradient.layout is torch.strided:
        return Meaning(gradient, torch.ones_like(gradient, dtype=torch.bool))
    ones = torch.ones_like(gradient.values(), dtype=torch.float32)
    pattern = torch.sparse_coo_tensor(gradient.indices(), ones, gradient.shape, check_invariants=True)
    return Meaning(gradient.to_dense(), pattern.to_dense() > 0)
