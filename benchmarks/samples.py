"""Random operands, the same in every run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["random_mask", "random_values"]


def random_values(shape: Sequence[int], dtype: str, seed: int = 0, around: float = 0.5) -> Tensor:
    """Normally distributed about a mean that is not zero, for which a relative error would mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator).add_(around).to(getattr(torch, dtype))


def random_mask(shape: Sequence[int], density: float, dims: Sequence[int] = (), seed: int = 1) -> Tensor:
    """Entries specified at random, two more in every line along each of ``dims``, and the first two of all.

    So a mean and a variance exist in each of these lines, and peers that give NaN for an empty one can be compared too.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(tuple(shape), generator=generator).less_(density).bool()
    mask.view(-1)[:2] = True
    for dim in dims:
        length = shape[dim]
        others = [*shape[:dim], *shape[dim + 1 :]]
        lines = mask.movedim(dim, -1).reshape(-1, length)  # a copy, unless the lines are rows
        number = torch.arange(len(lines))
        for offset in (0, 1):
            lines[number, (number + offset) % length] = True
        mask = lines.view(*others, length).movedim(-1, dim).contiguous()
    return mask
