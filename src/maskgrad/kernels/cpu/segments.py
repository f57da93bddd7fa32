"""Loops over segments: segments are read in place, one task per segment.

A family makes its loops from a formula here. Segments are those of :mod:`maskgrad.kernels.segments`; ``width`` is the
number of values of an entry. Names: v, x, y values of the entries; sums are in float64 (of integers in int64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, compiled, decode, formula, reordered
from maskgrad.kernels.cpu.floating import ordered, restored
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.kernel import HALVES

Loops = tuple[Any, Any]  # over scalar entries, and over vectors

SHORT = 32  # entries up to which a plain loop is faster than making a slice
_NO_ORDER = np.empty(0, np.int64)


def entries(x: Tensor) -> Any:
    """The values of ``x`` as a flat array."""
    return array(x.detach().contiguous().view(-1))


def bounds(pointers: Tensor, order: Tensor | None) -> tuple[Any, Any, bool]:
    """Return arrays of one type in every case, so that one version is compiled."""
    has_order = order is not None
    return entries(pointers.long()), (entries(order) if order is not None else _NO_ORDER), has_order


def summed(
    loops: Loops,
    values: Tensor,
    pointers: Tensor,
    order: Tensor | None,
    dtype: torch.dtype,
    mean: bool = False,
) -> Tensor:
    """Run loops of :func:`summing`: the sum, or the mean (0 if empty)."""
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), dtype)
    wide = np.float64(0) if values.is_floating_point() else np.int64(0)
    run(
        loops[width > 1], entries(values), *bounds(pointers, order), width, wide, mean, out.view(-1).numpy(),
        tasks=rows, elements=values.numel() // LIGHT,
    )  # fmt: skip
    return out


def extreme(loops: Loops, values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """Run loops of :func:`extremes`; float32 for half precision."""
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), torch.float32 if values.dtype in HALVES else values.dtype)
    run(
        loops[width > 1], entries(values), *bounds(pointers, order), width, 0 if largest else -1, out.view(-1).numpy(),
        tasks=rows, elements=values.numel(),
    )  # fmt: skip
    return out


def write(
    loops: Loops, x: Tensor, y: Tensor, a: Tensor, b: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """Run loops of :func:`writing` on ``x``, in its type; half precision is computed in float32."""
    wide = x.detach().float() if x.dtype in HALVES else x.detach()
    out, width = empty(x.shape, wide.dtype), math.prod(x.shape[1:])
    run(
        loops[width > 1], entries(wide), entries(wide if y is x else y), entries(a), entries(b),
        *bounds(pointers, order), width, out.view(-1).numpy(), tasks=len(pointers) - 1, elements=2 * out.numel(),
    )  # fmt: skip
    return out.to(x.dtype)


def adding(term: Any) -> tuple[Any, Any, Any]:
    """Return functions that add ``term(x, c)`` of a slice, of a segment of scalars, and of one of vectors."""

    @reordered
    def add_slice(v: Any, center: Any, s: Any) -> Any:
        for i in range(v.size):
            s += term(decode(v[i]), center)
        return s

    @formula
    def add(v: Any, order: Any, has_order: bool, start: int, stop: int, center: Any, s: Any) -> Any:
        if has_order:
            for i in range(start, stop):
                s += term(decode(v[order[i]]), center)
        elif stop - start < SHORT:
            for i in range(start, stop):
                s += term(decode(v[i]), center)
        else:
            s = add_slice(v[start:stop], center, s)
        return s

    @formula
    def add_vectors(
        v: Any, order: Any, has_order: bool, start: int, stop: int, width: int, centers: Any, sums: Any
    ) -> None:
        for i in range(start, stop):
            at = np.uint64((order[i] if has_order else i) * width)
            for u in range(np.uint64(width)):
                sums[u] += term(decode(v[at + u]), centers[u])

    return add_slice, add, add_vectors


# Overhead dominates loops over short segments. Those over scalars and over vectors are separate functions (as one,
# scalars took twice as long), few functions are called for each segment, and unsigned indices, which need no check
# for counting from the end, vectorise without a slice.


def summing(term: Any) -> Loops:
    """Make loops that sum ``term(x, zero, one)`` of the entries of each segment, in the type of ``wide``.

    One formula serves the sums of rows, of columns (``reductions/cpu.py``) and of segments.
    """

    @formula
    def of(x: Any, zero: Any) -> Any:
        return term(x, zero, zero + 1)

    _, add, add_vectors = adding(of)

    @compiled
    def numbers(
        v: Any, pointers: Any, order: Any, has_order: bool, width: int, wide: Any, mean: bool, out: Any, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        for k in range(lo, hi):
            start, stop = pointers[k], pointers[k + 1]
            s = add(v, order, has_order, start, stop, wide, wide)
            if mean:
                out[k] = s / max(stop - start, 1)
            else:
                out[k] = s

    @compiled
    def vectors(
        v: Any, pointers: Any, order: Any, has_order: bool, width: int, wide: Any, mean: bool, out: Any, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        sums, nothing = np.full(width, wide), np.full(width, wide)
        for k in range(lo, hi):
            start, stop, result = pointers[k], pointers[k + 1], out[k * width : (k + 1) * width]
            sums[:] = wide
            add_vectors(v, order, has_order, start, stop, width, nothing, sums)
            for j in range(width):
                if mean:
                    result[j] = sums[j] / max(stop - start, 1)
                else:
                    result[j] = sums[j]

    return numbers, vectors


def extremes(of: Any) -> tuple[Any, Loops]:
    """Functions that find and write the largest ``of(x, 0, 1)`` of a segment (turned: the smallest).

    NaN wins. Entries are gathered, and compared as integers of the same order, so that the loop vectorises.
    """

    @formula
    def best(v: Any, start: int, stop: int, turn: int) -> Any:
        first = np.uint64(start)
        found = ordered(of(decode(v[first]), 0, 1), turn)
        for u in range(np.uint64(stop - start)):
            key = ordered(of(decode(v[first + u]), 0, 1), turn)
            found = key if key > found else found
        return found

    @compiled
    def numbers(
        v: Any, pointers: Any, order: Any, has_order: bool, width: int, turn: int, out: Any, lo: int, hi: int
    ) -> None:
        space = np.empty(longest(pointers, lo, hi) if has_order else 0, v.dtype)
        for k in range(lo, hi):
            start, stop = pointers[k], pointers[k + 1]
            if start == stop:
                out[k] = 0
            elif has_order:
                for i in range(start, stop):
                    space[np.uint64(i - start)] = v[order[i]]
                out[k] = restored(best(space, 0, stop - start, turn), turn, out[0])
            else:
                out[k] = restored(best(v, start, stop, turn), turn, out[0])

    @compiled
    def vectors(
        v: Any, pointers: Any, order: Any, has_order: bool, width: int, turn: int, out: Any, lo: int, hi: int
    ) -> None:
        keys = np.full(width, ordered(of(decode(v[0]), 0, 1), turn))
        for k in range(lo, hi):
            start, stop, result = pointers[k], pointers[k + 1], out[k * width : (k + 1) * width]
            result[:] = 0
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width
                row = v[at : at + width]
                for j in range(width):
                    key = ordered(of(decode(row[j]), 0, 1), turn)
                    keys[j] = key if (i == start) | (key > keys[j]) else keys[j]
            if start < stop:
                for j in range(width):
                    result[j] = restored(keys[j], turn, out[0])

    return best, (numbers, vectors)


def writing(of: Any, hit: Any = None, together: bool = False) -> Loops:
    """Make loops that write ``of(x, y, a, b)`` of each entry: x and y are entries, a and b values of their segment.

    With ``hit``, the entries x for which ``hit(x, b)`` is 1, and not 0, share a. Scalar entries of a segment that are
    not contiguous are gathered first, if the formula (of x alone) is to vectorise.
    """
    shared = hit is not None
    _, add, add_vectors = adding(hit if shared else alone)

    @compiled
    def write_slice(out: Any, x: Any, a: Any, b: Any) -> None:
        for i in range(out.size):
            out[i] = of(x[i], x[i], a, b)

    @compiled
    def numbers(
        x: Any, y: Any, a: Any, b: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        space = np.empty(longest(pointers, lo, hi) if together and has_order else 0, x.dtype)
        for k in range(lo, hi):
            start, stop, share, center = pointers[k], pointers[k + 1], a[k], b[k]
            if shared:
                share = a.dtype.type(share / max(add(x, order, has_order, start, stop, center, 0.0), 1.0))
            if not has_order:
                first = np.uint64(start)
                for u in range(np.uint64(stop - start)):
                    out[first + u] = of(x[first + u], y[first + u], share, center)
            elif together:
                places, segment = order[start:stop], space[: stop - start]
                gather(x, places, 1, 0, segment)
                write_slice(segment, segment, share, center)
                for i in range(places.size):
                    out[places[i]] = segment[i]
            else:
                for i in range(start, stop):
                    at = order[i]
                    out[at] = of(x[at], y[at], share, center)

    @compiled
    def vectors(
        x: Any, y: Any, a: Any, b: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        ties, shares = np.zeros(width, a.dtype), np.empty(width, a.dtype)
        for k in range(lo, hi):
            start, stop, centers = pointers[k], pointers[k + 1], b[k * width : (k + 1) * width]
            shares[:] = a[k * width : (k + 1) * width]
            if shared:
                ties[:] = 0
                add_vectors(x, order, has_order, start, stop, width, centers, ties)
                for j in range(width):
                    shares[j] /= max(ties[j], 1)
            for i in range(start, stop):
                at = np.uint64((order[i] if has_order else i) * width)
                for u in range(np.uint64(width)):
                    out[at + u] = of(x[at + u], y[at + u], shares[u], centers[u])

    return numbers, vectors


@compiled
def gather(v: Any, places: Any, width: int, column: int, together: Any) -> None:
    """Gather one column of the entries at ``places``."""
    if width == 1:
        for i in range(places.size):
            together[i] = v[places[i]]
    else:
        for i in range(places.size):
            together[i] = v[places[i] * width + column]


@compiled
def longest(pointers: Any, lo: int, hi: int) -> int:
    """The length of the longest segment."""
    found = 0
    for k in range(lo, hi):
        found = max(found, pointers[k + 1] - pointers[k])
    return found


@formula
def itself(x: Any, zero: Any, one: Any) -> Any:
    """The term of a sum."""
    return x


@formula
def alone(x: Any, center: Any) -> Any:
    """The same, as :func:`adding` needs it."""
    return x
