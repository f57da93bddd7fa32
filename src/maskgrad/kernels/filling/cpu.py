r"""Replacing what is under a mask by a constant: one pass, without a branch.

.. math:: y_i = x_i \text{ where } m_i, \text{ else filler}

The processor guesses the outcome of a branch, and at a random mask it guesses wrong half of the time. So both sides are
read and one is chosen, which compiles to vector code. The numbers are only moved, so their bits travel as
integers: four compiled versions serve every dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, compiled
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.layout import Axis, axes, offsets

PIECE = 16384  # entries of a long row that make one task
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
    merged, values, mask = _readable(out, values, mask)
    inner = merged.pop() if merged else Axis(1, False, (1, 1, 1))
    rows = 1
    for axis in merged:
        rows *= axis.size
    pieces = -(-inner.size // PIECE)
    run(
        loop, _memory(out, bits), _memory(values, bits), _memory(mask, torch.uint8), *constants, *offsets(merged, 3),
        inner.size, *inner.strides[1:], pieces, tasks=rows * pieces, elements=out.numel(),
    )  # fmt: skip


def _memory(x: Tensor, bits: torch.dtype) -> Any:
    """The memory that ``x`` spans, as a 1-D array of integers."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return array(x.as_strided((span,), (1,)).view(bits))


def _readable(out: Tensor, values: Tensor, mask: Tensor) -> tuple[list[Axis], Tensor, Tensor]:
    """The axes of ``out``; what does not lie along its inner axis with stride 0 or 1 is copied into its order first."""
    merged, _ = axes((out, values, mask), ())
    if merged and any(stride > 1 for stride in merged[-1].strides[1:]):
        values, mask = (
            x if merged[-1].strides[i] <= 1 else torch.empty_like(out, dtype=x.dtype).copy_(x)
            for i, x in ((1, values), (2, mask))
        )
        merged, _ = axes((out, values, mask), ())
    return merged, values, mask


@compiled
def _keep(out: Any, v: Any, m: Any, old: Any) -> None:
    for k in range(out.size):  # ``old`` is ``out``: under one name, the loop takes half as long again
        value, kept = v[k], old[k]
        out[k] = value if m[k] != 0 else kept


@compiled
def _starts(
    task: int, sizes: Any, out_strides: Any, v_strides: Any, m_strides: Any, length: int, v_step: int, m_step: int,
    pieces: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Where a task begins in the three memories, and for how many entries: piece t % pieces of row t // pieces."""
    rest, start = task // pieces, task % pieces * PIECE
    o_row, v_row, m_row = start, start * v_step, start * m_step
    for axis in range(sizes.size - 1, -1, -1):
        i = rest % sizes[axis]
        rest //= sizes[axis]
        o_row += i * out_strides[axis]
        v_row += i * v_strides[axis]
        m_row += i * m_strides[axis]
    return o_row, v_row, m_row, min(start + PIECE, length) - start


@compiled
def _write(
    out: Any, v: Any, m: Any, sizes: Any, out_strides: Any, v_strides: Any, m_strides: Any, length: int, v_step: int,
    m_step: int, pieces: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """``v_step`` and ``m_step`` are 0 or 1."""
    for task in range(lo, hi):
        o_row, v_row, m_row, size = _starts(
            task, sizes, out_strides, v_strides, m_strides, length, v_step, m_step, pieces
        )
        row = out[o_row : o_row + size]
        if m_step and v_step:
            _keep(row, v[v_row : v_row + size], m[m_row : m_row + size], row)
        elif m_step:
            for k in range(size):
                if m[m_row + k] != 0:
                    row[k] = v[v_row]
        elif m[m_row] != 0:
            if v_step:
                row[:] = v[v_row : v_row + size]
            else:
                row[:] = v[v_row]


@compiled
def _fill(
    out: Any, v: Any, m: Any, filler: Any, sizes: Any, out_strides: Any, v_strides: Any, m_strides: Any, length: int,
    v_step: int, m_step: int, pieces: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """``v_step`` and ``m_step`` are 0 or 1. Indices without a sign make vector code of short rows without a slice."""
    for task in range(lo, hi):
        o_row, v_row, m_row, length_of_row = _starts(
            task, sizes, out_strides, v_strides, m_strides, length, v_step, m_step, pieces
        )
        o, a, b, size = np.uint64(o_row), np.uint64(v_row), np.uint64(m_row), np.uint64(length_of_row)
        if m_step:
            if v_step:
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
        elif v_step:
            for k in range(size):
                out[o + k] = v[a + k]
        else:
            value = v[a]
            for k in range(size):
                out[o + k] = value
