r"""Sums over segments of stored entries: each segment is read in place.

Nothing is sorted or searched: the caller passes the segments (``pointers``, and ``order`` where the entries of one are
not contiguous). One task is one segment, added in float64 (integers in int64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, decode, flat, reordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import LIGHT, run


def sum_of_segments(values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype) -> Tensor:
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    values, pointers = values.contiguous(), pointers.long().contiguous()
    has_order = order is not None
    order = pointers if order is None else order.contiguous()
    out = empty((rows, *values.shape[1:]), dtype)
    wide = np.float64(0) if values.is_floating_point() else np.int64(0)
    run(
        _sum, flat(values), flat(pointers), flat(order), has_order, width, wide, flat(out), tasks=rows,
        elements=values.numel() // LIGHT,
    )  # fmt: skip
    return out


@reordered
def _sum(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, wide: Any, out: Any, lo: int, hi: int
) -> None:
    v, pointers, order, out = at(v), at(pointers), at(order), at(out)
    sums = np.full(width, wide)
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1:  # as vectors of one value, scalars took twice as long
            s, first = wide, np.uint64(start)
            if has_order:
                for i in range(start, stop):
                    s += decode(v[order[i]])
            else:
                for u in range(np.uint64(stop - start)):
                    s += decode(v[first + u])
            out[k] = s
        else:  # unsigned indices vectorise; slices took eight times as long
            sums[:] = wide
            for i in range(start, stop):
                first = np.uint64((order[i] if has_order else i) * width)
                for u in range(np.uint64(width)):
                    sums[u] += decode(v[first + u])
            for u in range(np.uint64(width)):
                out[np.uint64(k * width) + u] = sums[u]
