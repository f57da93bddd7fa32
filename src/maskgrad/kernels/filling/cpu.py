r"""Replacing what is under a mask by a constant: one pass, without a branch.

The processor guesses the outcome of a branch, and at a random mask it guesses wrong half of the time. So both sides are
read and one is chosen, which compiles to vector code. The numbers are only moved, so their bits travel as
integers: four compiled versions serve every dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, flat
from maskgrad.kernels.cpu.loops import place
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import walk
from maskgrad.kernels.cpu.threads import run

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """As in the reference; the result lies in memory as ``torch.empty_like(values)`` would."""
    plan = torch.empty_like(values, device="meta")
    out = empty(values.numel(), values.dtype).as_strided(values.shape, plan.stride())
    select(out, values, mask, filler)
    return out


def select(out: Tensor, values: Tensor, mask: Tensor, filler: float) -> None:
    """Write ``values`` where ``mask`` holds, else ``filler``, to ``out``, which has no gaps; of one shape."""
    if out.numel():
        bits = _BITS[out.element_size()]
        exact = torch.float64 if out.is_floating_point() else torch.int64
        constant = torch.tensor(filler, dtype=exact).to(out.dtype).view(bits).numpy()[()]
        _walk(_fill, out, values.detach(), mask, constant)


def write_where_(target: Tensor, values: Tensor, mask: Tensor) -> bool:
    """Write ``values`` where ``mask`` holds; False, and nothing is done, if these memories are not walked here."""
    strides = [stride for size, stride in zip(target.shape, target.stride(), strict=True) if size > 1]
    shared = target.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    if shared or min(strides, default=1) != 1 or target.shape != values.shape or mask.shape != values.shape:
        return False
    if target.numel():
        _walk(_write, target.detach(), values.detach(), mask)
    return True


def _walk(loop: Any, out: Tensor, values: Tensor, mask: Tensor, *constants: Any) -> None:
    """Run a loop over three tensors, along the memory of the first, whose innermost stride is 1."""
    bits = _BITS[out.element_size()]
    way = walk(out, values, mask)
    out, values, mask = way.tensors
    run(
        loop, flat(out.view(bits)), flat(values.view(bits)), flat(mask), *constants, *way.geometry(), tasks=way.tasks,
        elements=out.numel(),
    )  # fmt: skip


@compiled
def _keep(out: Any, v: Any, m: Any, old: Any) -> None:
    for k in range(out.size):  # ``old`` is ``out``: under one name, the loop takes half as long again
        value, kept = v[k], old[k]
        out[k] = value if m[k] != 0 else kept


@compiled
def _write(
    out: Any, v: Any, m: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int, lo: int, hi: int
) -> None:
    """Steps of values and mask are 0 or 1."""
    for task in range(lo, hi):
        line, start = task // pieces, task % pieces * piece
        size = min(start + piece, length) - start
        v_row, m_row = place(outer, line, 1) + start * steps[1], place(outer, line, 2) + start * steps[2]
        o_row = place(outer, line, 0) + start
        row = out[o_row : o_row + size]
        if steps[2] and steps[1]:
            _keep(row, v[v_row : v_row + size], m[m_row : m_row + size], row)
        elif steps[2]:
            for k in range(size):
                if m[m_row + k] != 0:
                    row[k] = v[v_row]
        elif m[m_row] != 0:
            if steps[1]:
                row[:] = v[v_row : v_row + size]
            else:
                row[:] = v[v_row]


@compiled
def _fill(
    out: Any, v: Any, m: Any, filler: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """Steps of values and mask are 0 or 1.

    Rows with one Boolean are often short (the features of a step in time). Indices without a sign need no look at
    whether they count from the end, so that a row is vector code without a slice, which costs as much as 64 numbers.
    """
    for task in range(lo, hi):
        line, start = task // pieces, task % pieces * piece
        o, size = np.uint64(place(outer, line, 0) + start), np.uint64(min(start + piece, length) - start)
        a = np.uint64(place(outer, line, 1) + start * steps[1])
        b = np.uint64(place(outer, line, 2) + start * steps[2])
        if steps[2]:
            if steps[1]:
                for k in range(size):
                    value = v[a + k]  # read in any case: a read that may be left out is a branch
                    out[o + k] = value if m[b + k] != 0 else filler
            else:
                value = v[a]
                for k in range(size):
                    out[o + k] = value if m[b + k] != 0 else filler
        elif m[b] == 0:
            for k in range(size):
                out[o + k] = filler
        elif steps[1]:
            for k in range(size):
                out[o + k] = v[a + k]
        else:
            value = v[a]
            for k in range(size):
                out[o + k] = value
