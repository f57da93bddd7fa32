"""Gradients of every kind, with garbage where nothing is specified, and what they mean: dense values and a mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.distributed import reduction_plan

SHAPE = (6, 4)
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)
SPARSE = ("csr", "csc", "bsr", "bsc")
KINDS = (
    "none", "dense", "transposed", "rows", "entries", "empty rows", "mask", "nothing specified",
    *SPARSE, "masked rows", *(f"masked {name}" for name in SPARSE),
)  # fmt: skip


class Meaning(NamedTuple):
    """What a gradient says: (6, 4) values in float64 (or complex128), 0 where unspecified, and a mask."""

    values: Tensor
    mask: Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def random(generator: torch.Generator, *size: int, dtype: torch.dtype) -> Tensor:
    """Numbers that halves hold exactly."""
    return torch.randint(-32, 33, size, generator=generator).to(dtype) / 8


def gradient(kind: str, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Meaning]:
    """A gradient of a kind, different on each rank, and what it means."""
    draw = torch.Generator().manual_seed(100 * rank + KINDS.index(kind))
    none = Meaning(torch.zeros(SHAPE, dtype=wide(dtype)), torch.zeros(SHAPE, dtype=torch.bool))
    if kind == "none":
        return None, none
    if kind in ("dense", "transposed"):
        values = random(draw, *SHAPE, dtype=dtype)
        if kind == "transposed":
            values = values.t().contiguous().t()
        return values, Meaning(values.to(wide(dtype)), torch.ones(SHAPE, dtype=torch.bool))
    if kind in ("rows", "masked rows", "empty rows"):
        number = 0 if kind == "empty rows" else 5
        at = torch.randint(0, SHAPE[0], (1, number), generator=draw)
        values = random(draw, number, SHAPE[1], dtype=dtype)
        coo = torch.sparse_coo_tensor(at, values, SHAPE, check_invariants=True)
        mask = none.mask.clone()
        mask[at[0]] = True
        meaning = Meaning(none.values.index_add(0, at[0], values.to(wide(dtype))), mask)
        return (mg.from_sparse(coo) if kind == "masked rows" else coo), meaning
    if kind == "entries":
        at = torch.stack([torch.randint(0, size, (7,), generator=draw) for size in SHAPE])
        values = random(draw, 7, dtype=dtype)
        mask = none.mask.index_put(tuple(at), torch.tensor(True))
        meaning = Meaning(none.values.index_put(tuple(at), values.to(wide(dtype)), accumulate=True), mask)
        return torch.sparse_coo_tensor(at, values, SHAPE, check_invariants=True), meaning
    blocks = torch.rand(3, 2, generator=draw) < 0.5
    if kind == "nothing specified":
        blocks = torch.zeros_like(blocks)
    mask = blocks.repeat_interleave(2, 0).repeat_interleave(2, 1)
    values = random(draw, *SHAPE, dtype=dtype)
    meaning = Meaning(torch.where(mask, values, 0).to(wide(dtype)), mask)
    garbage = torch.tensor(GARBAGE).repeat(6).reshape(SHAPE).to(dtype)
    masked = mg.masked(torch.where(mask, values, garbage), mask)
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
    if gradient.layout is torch.sparse_coo:
        pattern = torch.sparse_coo_tensor(gradient.indices(), ones, gradient.shape, check_invariants=True)
    else:
        line, other = (
            (gradient.crow_indices(), gradient.col_indices())
            if gradient.layout in (torch.sparse_csr, torch.sparse_bsr)
            else (gradient.ccol_indices(), gradient.row_indices())
        )
        pattern = torch.sparse_compressed_tensor(
            line, other, ones, gradient.shape, layout=gradient.layout, check_invariants=True
        )
    return Meaning(gradient.to_dense(), pattern.to_dense() > 0)


def kind_of(gradient: Any) -> str:
    """The kind that a result has."""
    if gradient is None:
        return "none"
    masked = "masked " if isinstance(gradient, mg.MaskedTensor) else ""
    return masked + str(gradient.layout).removeprefix("torch.")


def fix_the_way(patch: pytest.MonkeyPatch, way: str) -> None:
    """Send sparse gradients as "lists" or as a "whole", on a rank; otherwise in fewer bytes."""
    if way != "fewer bytes":
        patch.setattr(reduction_plan, "_lists_are_shorter", lambda *_: way == "lists")
