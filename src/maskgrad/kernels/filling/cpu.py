r"""Replacing masked entries by a constant: one pass, without a branch.

.. math:: y_i = x_i \text{ where } m_i, \text{ else filler}

At a random mask a branch is mispredicted half of the time. So both sides are
read and one is selected, which vectorises. A mask that repeats along the innermost axis (padding) is read
once for all of it. Values are only copied, so their bits travel as integers: four compiled versions serve
every dtype.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, compiled, flat, formula
from maskgrad.kernels.cpu.memory import advised
from maskgrad.kernels.cpu.partition import KEPT
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.filling import BITS, is_zero
from maskgrad.kernels.layout import Axis, axes

PIECE = 16384  # entries of a long row that make one task
AXES = 3  # that a loop traverses
_NUMBERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """As in the reference; the result has the strides of ``torch.empty_like(values)``."""
    out = advised(torch.empty_like(values, requires_grad=False))
    select(out, values, mask, filler)
    return out


def select(out: Tensor, values: Tensor, mask: Tensor, filler: float) -> None:
    """Write ``values``, broadcast, where ``mask`` holds, else ``filler``, to ``out``, which has no gaps."""
    if not out.numel():
        return
    way = _way(out.shape, out.stride(), values.shape, values.stride(), mask.stride())
    if way is None:
        values, mask = (torch.empty_like(out, dtype=x.dtype).copy_(x) for x in (values.detach(), mask))
        way = _way(out.shape, out.stride(), values.shape, values.stride(), mask.stride())
        assert way is not None  # without gaps, all three are one axis
    geometry, tasks = way
    number = _NUMBERS[out.element_size()]
    run(
        _fill, (out.data_ptr(), number(0)), (values.data_ptr(), number(0)), flat(mask),
        number(0 if is_zero(filler) else _bits(filler, out.dtype)), *geometry,
        tasks=tasks, elements=out.numel() // LIGHT,
    )  # fmt: skip


@functools.lru_cache(256)  # 12 µs where the fill of 65,536 entries takes 8
def _bits(filler: float, dtype: torch.dtype) -> int:
    """Return the bits of a scalar in a dtype, as a signed integer; -0 for both zeros, as they are equal."""
    exact = torch.float64 if dtype.is_floating_point else torch.int64
    return int(
        torch.tensor(filler or math.copysign(0.0, -1), dtype=exact).to(dtype).view(BITS[dtype.itemsize])
    )


@functools.lru_cache(KEPT)
def _way(
    shape: torch.Size, steps: tuple[int, ...], values_shape: torch.Size, values_steps: tuple[int, ...],
    mask_steps: tuple[int, ...],
) -> tuple[tuple[Any, ...], int] | None:  # fmt: skip
    """Return the arguments ``slow_by, …, pieces`` of a loop, and the number of its tasks; None if it has more axes."""
    read = torch.empty_strided(values_shape, values_steps, device="meta").expand(shape).stride()
    found = axes(shape, (steps, read, mask_steps), ())[0] or [Axis(1, False, (1, 1, 1))]
    if len(found) > AXES:
        return None
    slow, fast, inner = [Axis(1, False, (0, 0, 0))] * (AXES - len(found)) + found
    pieces = -(-inner.size // PIECE)
    geometry = (slow.strides, fast.size, fast.strides, inner.size, inner.strides, pieces)
    return geometry, slow.size * fast.size * pieces


@formula
def _line(
    out: Any, values: Any, mask: Any, filler: Any, o0: int, v0: int, m0: int, length: int, steps: Any
) -> None:
    o, v, m, size = np.uint64(o0), np.uint64(v0), np.uint64(m0), np.uint64(length)
    o_step, v_step, m_step = steps
    if o_step == 1 and m_step == 0 and v_step <= 1:
        if mask[m] == 0:
            for k in range(size):
                out[o + k] = filler
        elif v_step:
            for k in range(size):
                out[o + k] = values[v + k]
        else:
            same = values[v]
            for k in range(size):
                out[o + k] = same
    elif o_step == 1 and m_step == 1 and v_step == 1:
        for k in range(size):
            value = values[v + k]  # read in any case: a conditional read is a branch
            out[o + k] = value if mask[m + k] != 0 else filler
    elif o_step == 1 and m_step == 1 and v_step == 0:
        same = values[v]
        for k in range(size):
            out[o + k] = same if mask[m + k] != 0 else filler
    else:
        o_by, v_by, m_by = np.uint64(o_step), np.uint64(v_step), np.uint64(m_step)
        for k in range(size):
            value = values[v + k * v_by]
            out[o + k * o_by] = value if mask[m + k * m_by] != 0 else filler


@compiled
def _fill(
    out: Any, values: Any, mask: Any, filler: Any, slow_by: Any, fasts: int, fast_by: Any, inners: int, steps: Any,
    pieces: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes piece t % pieces of row t // pieces; no division for each of many short rows."""
    out, values, mask = at(out), at(values), at(mask)
    o_row, v_row, m_row = fast_by
    follow = v_row == inners * steps[1] and v_row >= 0
    same = v_row == 0 and not follow and inners < 64
    if pieces == 1 and steps[0] == 1 and steps[2] == 0 and o_row == inners:
        for slow in range(lo // fasts, -(-hi // fasts)):
            row = slow * fasts
            o, v, m = slow * slow_by[0], slow * slow_by[1], slow * slow_by[2]
            fast, last = max(lo - row, 0), min(hi - row, fasts)
            while fast < last:  # equal rows of the mask are one
                start, known = fast, mask[m + fast * m_row] != 0
                while fast < last and (mask[m + fast * m_row] != 0) == known:
                    fast += 1
                at_once = fast - start if follow or not known else 1
                done = start + 1 if same and known else fast
                for first in range(start, done, at_once):
                    o0, v0, size = o + first * o_row, v + first * v_row, at_once * inners
                    _line(out, values, mask, filler, o0, v0, m + first * m_row, size, steps)
                while done < fast:  # equal rows are copied, all that are there at once: 8 values are too few
                    there = min(done - start, fast - done)
                    source, target = np.uint64(o + start * o_row), np.uint64(o + done * o_row)
                    for k in range(np.uint64(there * inners)):
                        out[target + k] = out[source + k]
                    done += there
    else:
        tasks = fasts * pieces
        for slow in range(lo // tasks, -(-hi // tasks)):
            first = slow * tasks
            o, v, m = slow * slow_by[0], slow * slow_by[1], slow * slow_by[2]
            for task in range(max(lo - first, 0), min(hi - first, tasks)):
                fast, start = (task, 0) if pieces == 1 else (task // pieces, task % pieces * PIECE)
                o0 = o + fast * fast_by[0] + start * steps[0]
                v0 = v + fast * fast_by[1] + start * steps[1]
                m0 = m + fast * fast_by[2] + start * steps[2]
                _line(out, values, mask, filler, o0, v0, m0, min(PIECE, inners - start), steps)
