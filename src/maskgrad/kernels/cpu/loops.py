"""Loops for all families: the memory of a task, and passes that write a formula of each specified entry.

Their memory arguments come from ``partition.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, compiled, decode, flat, formula
from maskgrad.kernels.cpu.floating import encode
from maskgrad.kernels.cpu.partition import copied_like, dense_or_copied, like, walk
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES


@formula
def row_offset(outer: Any, row: int, tensor: int) -> int:
    """Return where row ``row`` of a tensor begins. Divisions dominate short rows: the slowest axis needs none."""
    start = 0
    for axis in range(outer.shape[0] - 1, 0, -1):
        size = outer[axis, 0]
        start += row % size * outer[axis, 1 + tensor]
        row //= size
    return start + row * outer[0, 1 + tensor] if outer.shape[0] else start


@formula
def split_task(task: int, pieces: int, piece: int) -> tuple[int, int]:
    """Return the row of a task, and where its piece of the row begins."""
    return (task, 0) if pieces == 1 else (task // pieces, task % pieces * piece)


@formula
def stretch(m: Any, m_row: int, start: int, stop: int, step: int) -> tuple[int, bool, int]:
    """Return the end of the entries from ``start`` on that share one mask value, that value, and its position.

    With a ``step`` of 1 each entry has its own mask value; with 0, the row shares one; with ``-n``, n entries share
    one.
    """
    if step > 0:
        return stop, True, m_row + start
    if step == 0:
        return stop, m[m_row] != 0, m_row
    first, last = m_row + start // -step, m_row + stop // -step
    place, there = first + 1, m[first] != 0
    while place < last and (m[place] != 0) == there:
        place += 1
    return (place - m_row) * -step, there, first


def wide(x: Tensor) -> torch.dtype:
    """Return the type that the entries of ``x`` are computed in."""
    return torch.float32 if x.dtype in HALVES else x.dtype


def number(x: Tensor, value: float) -> Any:
    """Return ``value`` in the type that the entries of ``x`` are computed in; int64 for integers."""
    if x.dtype == torch.float64:
        return np.float64(value)
    return np.float32(value) if x.is_floating_point() else np.int64(value)


def same_everywhere(x: Tensor) -> Tensor:
    """Return one entry of ``x`` for all: the memory of an operand that a formula does not use."""
    return x.as_strided(x.shape, (0,) * x.ndim)


def scalars(x: Tensor, numbers: Sequence[float] = ()) -> tuple[Any, ...]:
    """Return 0, 1 and ``numbers`` in the type that the entries of ``x`` are computed in."""
    return tuple(number(x, value) for value in (0, 1, *numbers))


def entrywise(of: Any) -> Callable[..., None]:
    """Make a loop that writes the :func:`formula` ``of(x, y, a, b, c, d, n)`` where the mask holds, else a constant.

    ``x`` and ``y`` are entries, ``a`` to ``d`` scalars that several entries share, ``n`` scalars that all share.
    """

    @compiled
    def loop(
        out: Any, x: Any, y: Any, m: Any, a: Any, b: Any, c: Any, d: Any, outer: Any, length: int, steps: Any,
        pieces: int, piece: int, n: Any, nothing: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t writes piece t % pieces of row t // pieces.

        Steps are 1 for ``out`` and ``x``, else 0 or 1; for the mask see :func:`stretch`.
        Unsigned indices vectorise without slices, which dominate the cost of short rows.
        """
        out, x, y, m, a, b, c, d = at(out), at(x), at(y), at(m), at(a), at(b), at(c), at(d)
        others = y if steps[2] else np.full(min(piece, length), y[0])
        mask = m if steps[3] > 0 else np.ones(min(piece, length), np.uint8)
        for task in range(lo, hi):
            row, end = split_task(task, pieces, piece)
            stop, m_row = min(end + piece, length), row_offset(outer, row, 3)
            while end < stop:
                start = end
                end, there, m1 = stretch(m, m_row, start, stop, steps[3])
                size = np.uint64(end - start)
                o0, x0 = (
                    np.uint64(row_offset(outer, row, 0) + start),
                    np.uint64(row_offset(outer, row, 1) + start),
                )
                y1 = row_offset(outer, row, 2) + start * steps[2]
                if not there:
                    value = encode(nothing, out[0])
                    for k in range(size):
                        out[o0 + k] = value
                    continue
                if steps[2] == 0:
                    same = y[y1]
                    for k in range(size):
                        others[k] = same
                y0, m0 = np.uint64(y1 if steps[2] else 0), np.uint64(m1 if steps[3] > 0 else 0)
                i = np.uint64(row_offset(outer, row, 4) + start * steps[4])
                if steps[4] == 0:
                    a0, b0, c0, d0 = a[i], b[i], c[i], d[i]
                    for k in range(size):
                        result = of(decode(x[x0 + k]), decode(others[y0 + k]), a0, b0, c0, d0, n)
                        out[o0 + k] = encode(result if mask[m0 + k] != 0 else nothing, out[0])
                else:
                    for k in range(size):
                        first, second = decode(x[x0 + k]), decode(others[y0 + k])
                        result = of(first, second, a[i + k], b[i + k], c[i + k], d[i + k], n)
                        out[o0 + k] = encode(result if mask[m0 + k] != 0 else nothing, out[0])

    return loop


def write(
    loop: Callable[..., None],
    x: Tensor,
    y: Tensor | None,
    mask: Tensor,
    *few: Tensor | None,
    nothing: float = 0.0,
    numbers: Sequence[float] = (),
) -> Tensor:
    """Run a loop of :func:`entrywise`: returns a tensor of the type of ``x``, dense in memory in its order.

    ``few`` are up to four tensors that broadcast to ``x``, None for zeros; the formula must not use missing ones. It
    gets 0, 1 and ``numbers`` in the type of its results.
    """
    x = dense_or_copied(x)
    out = like(x, x.dtype)
    if not out.numel():
        return out
    first, *rest = _alike(few, wide(x)) if few else [same_everywhere(x)]
    (*tensors, first), way = walk(out, x, x if y is None else y, mask, first, mask=3)
    if way.copied[-1]:
        rest = [copied_like(a, out) for a in rest]
    rest += [first] * (3 - len(rest))
    run(
        loop, *[flat(a) for a in (*tensors, first, *rest)], *way.geometry, scalars(x, numbers), number(x, nothing),
        tasks=way.tasks, elements=out.numel() * (1 if y is None else 2),
    )  # fmt: skip
    return out


def _alike(few: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor]:
    """Contiguous tensors of one shape, floats of one dtype; the loop then finds the same place in all of them."""
    given = [a for a in few if a is not None]
    shapes = {a.shape for a in given}
    shape = shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)
    found = []
    for a in few:
        part = torch.zeros(shape, dtype=dtype) if a is None else a if a.shape == shape else a.expand(shape)
        found.append((part if part.dtype in (dtype, torch.int64) else part.to(dtype)).contiguous())
    return found
