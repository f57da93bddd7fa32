"""The sum of a loss of a difference: one pass over both tensors and the mask (``cpu/sums.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import losses as family
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.sums import pair_loops, sums_of_pairs, wide


def masked_distance_sum(
    input: Tensor, target: Tensor, mask: Tensor, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if input.dtype != target.dtype:
        return family.masked_distance_sum.reference(input, target, mask, numbers)
    every, dtypes = range(input.ndim), (wide(input), torch.int64)
    return sums_of_pairs(_SUMS, input, target, mask, None, every, tuple(numbers), False, dtypes)


@formula
def _counted(x: Any, t: Any, c: Any, n: Any) -> Any:
    """The loss and 1; ``n`` are 0, 1 and q, limit, p, r of the reference."""
    away = abs(x - t)
    return n[4] * away - n[5] if away > n[3] else n[2] * away * away, n[1]


_SUMS = pair_loops(_counted)
