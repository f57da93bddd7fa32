"""Other contents for padding: numbers of the data's size, large ones, other ids, NaN and infinity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["KINDS", "other_contents"]

#: what is written over padding, and how a report calls it
KINDS = {
    "numbers": "other numbers, of the size of the data, and other ids",
    "large": "numbers ten thousand times as large, and other ids",
    "nan": "NaN",
    "inf": "infinity",
}
_LARGE = 1e4


def other_contents(tensor: Tensor, real: Tensor, kind: str, seed: int = 0) -> Tensor | None:
    """A copy of ``tensor`` with garbage where ``real`` is False; None if no other contents are possible.

    Args:
        tensor: tensor of any dtype.
        real: Boolean tensor of its shape.
        kind: one of :data:`KINDS`; integers have no NaN and no infinity.
        seed: other numbers for another seed; the program's generators are left alone.
    """
    generator = torch.Generator().manual_seed(0x5EED + seed)
    if bool(real.all()):
        return None
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.where(real, tensor, _numbers(tensor, real, kind, generator))
    if kind in ("nan", "inf"):
        return None
    if tensor.dtype == torch.bool:
        return torch.where(real, tensor, ~tensor)
    return _ids(tensor, real, generator)


def _numbers(tensor: Tensor, real: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    if kind in ("nan", "inf"):
        return torch.full_like(tensor, float(kind))
    size = float(torch.where(real, tensor, 0).abs().max())
    if not math.isfinite(size):
        size = float(torch.where(real & tensor.isfinite(), tensor, 0).abs().max())
    size = size or 1.0
    numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).mul_(size)
    if kind == "large":
        limit = torch.finfo(tensor.dtype).max / 16
        numbers.mul_(_LARGE).clamp_(-limit, limit)
    return numbers.to(tensor)


def _ids(tensor: Tensor, real: Tensor, generator: torch.Generator) -> Tensor | None:
    """Ids that the batch has elsewhere, so that every table knows them, and never the one that is there."""
    known = tensor[real].unique()
    if known.numel() < 2:
        # a single id: whatever lies between 0 and the largest number seen is in the table too
        known = torch.arange(max(2, int(tensor.max()) + 1), device=tensor.device, dtype=tensor.dtype)
        known = known[: max(2, int(tensor[real].max()) + 1)] if real.any() else known[:2]
    drawn = torch.randint(known.numel(), tensor.shape, generator=generator).to(tensor.device)
    ids, following = known[drawn], known[(drawn + 1) % known.numel()]
    return torch.where(real, tensor, torch.where(ids == tensor, following, ids))
