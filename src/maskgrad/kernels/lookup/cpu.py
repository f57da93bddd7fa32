r"""Looking up rows of a table: one copy with prefetched rows, into huge pages.

The processor cannot predict the rows of a large table, and fresh memory for the result costs more than the
copy (see ``memory.py``): half of PyTorch's time for 262,144 rows of a 10^6 x 64 table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, ask, compiled
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run

AHEAD = 8  # rows between prefetching one and reading it


def lookup_rows(table: Tensor, indices: Tensor) -> Tensor:
    width = math.prod(table.shape[1:])
    rows = indices.contiguous().numpy()
    outside = _outside(rows, len(table))
    if outside >= 0:
        raise IndexError(
            f"indices must lie in [0, {len(table)}), the rows of the table, "
            f"but indices[{outside}] is {int(indices[outside])}"
        )
    out = empty((len(rows), *table.shape[1:]), table.dtype)
    if out.numel():
        # Values are only copied, so their bits travel as integers: three compiled versions serve every dtype.
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[table.element_size()]
        source = table.detach().contiguous().view(-1).view(bits)
        run(
            _copy, array(source), source.data_ptr(), rows, array(out.view(-1).view(bits)), width, tasks=len(rows),
            elements=out.numel(),
        )  # fmt: skip
    return out


@compiled
def _outside(rows: Any, number: int) -> int:
    outside = -1
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= number:
            outside = i
    return outside


@compiled
def _copy(source: Any, base: int, rows: Any, out: Any, width: int, lo: int, hi: int) -> None:
    size = width * source.itemsize
    for k in range(lo, hi):
        if k + AHEAD < hi:
            start = base + np.int64(rows[k + AHEAD]) * size
            ask(start, size)
        at = np.int64(rows[k]) * width
        row, result = source[at : at + width], out[k * width : (k + 1) * width]
        for j in range(width):
            result[j] = row[j]
