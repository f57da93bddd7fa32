r"""A straight line through the specified entries: one pass that reads values and mask and writes the result.

.. math:: y_i = (x_i - c_i) s_i + o_i \text{ where } m_i, \text{ else exactly } 0

Center, slope and offset are broadcast. The derivative of a variance is such a line, and so is that of a norm, and a
standardized entry with the parameters of its channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, decode, flat
from maskgrad.kernels.cpu.partition import like, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES

__all__ = ["line"]


def line(
    values: Tensor,
    mask: Tensor,
    center: Tensor | None,
    slope: Tensor,
    offset: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The line above as a tensor of ``dtype``, dense in memory in the order of ``values``."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    values = walkable(values.detach())
    out = like(values, wide)
    if not out.numel():
        return out.to(dtype)
    # Alike in shape, all three vary along the inner axis or none does. Constants of a group, they are few.
    numbers = torch.broadcast_tensors(
        *(torch.zeros(()) if x is None else x.detach().to(wide) for x in (center, slope, offset))
    )
    way = walk(out, values, mask, *(x.to(wide).contiguous() for x in numbers))
    run(_line, *(flat(t) for t in way.tensors), *way.geometry(), tasks=way.tasks, elements=out.numel())
    return out.to(dtype)


@compiled
def _constant(out: Any, v: Any, m: Any, c: Any, s: Any, o: Any) -> None:
    for k in range(out.size):
        y = (decode(v[k]) - c) * s + o
        out[k] = y if m[k] != 0 else 0


@compiled
def _varying(out: Any, v: Any, m: Any, c: Any, s: Any, o: Any) -> None:
    for k in range(out.size):
        y = (decode(v[k]) - c[k]) * s[k] + o[k]
        out[k] = y if m[k] != 0 else 0


@compiled
def _line(
    out: Any, v: Any, m: Any, c: Any, s: Any, o: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes piece t % pieces of row t // pieces."""
    m_step, step = steps[2], steps[3]
    complete = np.ones(piece, np.uint8)
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        out_row, v_row, m_row = start, start, start * m_step
        c_row, s_row, o_row = start * step, start * step, start * step
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            out_row += i * outer[axis, 1]
            v_row += i * outer[axis, 2]
            m_row += i * outer[axis, 3]
            c_row += i * outer[axis, 4]
            s_row += i * outer[axis, 5]
            o_row += i * outer[axis, 6]
        row = out[out_row : out_row + stop - start]
        n = row.size
        if m_step == 0 and m[m_row] == 0:
            row[:] = 0
            continue
        specified = m[m_row : m_row + n] if m_step else complete[:n]
        entries = v[v_row : v_row + n]
        if step:
            _varying(
                row, entries, specified, c[c_row : c_row + n], s[s_row : s_row + n], o[o_row : o_row + n]
            )
        else:
            _constant(row, entries, specified, c[c_row], s[s_row], o[o_row])
