r"""Merging rows that share an index: sort the indices, then reduce each run of equal ones in place.

The values are neither permuted nor copied first: each is read once, each result written once. A run of one or
two is added in the type of the values (exact, or rounded once), a longer one in float64 (integers in int64), in
the order of the entries: the result is the same for any number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import carray  # type: ignore[attr-defined]
from torch import Tensor

from maskgrad.kernels import coalescing as family
from maskgrad.kernels.coalescing import REDUCTIONS
from maskgrad.kernels.cpu.compiler import array, ask, compiled, decode, pointer
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.sorting import fits, runs
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES

_SUM, _MEAN, _AMAX, _AMIN = range(4)
AHEAD = 16  # rows that are prefetched
MOST = 1024  # bytes of a row that are prefetched; the processor prefetches the rest itself


def merge_rows(indices: Tensor, values: Tensor, num_rows: int, reduce: str = "sum") -> tuple[Tensor, Tensor]:
    n, row = values.shape[0], values.shape[1:]
    width = math.prod(row)
    if not n or not width or not fits(n, num_rows):
        return family.merge_rows.reference(indices, values, num_rows, reduce)
    found = runs(indices, num_rows)
    halves = values.dtype in HALVES
    merged = empty((found.rows.shape[0], width), torch.float32 if halves else values.dtype)
    wide = np.float64(0) if values.is_floating_point() else np.int64(0)
    run(
        _merge, array(values.contiguous().view(-1)), found.keys, found.places, found.starts, width,
        REDUCTIONS.index(reduce), wide, merged.view(-1).numpy(), tasks=found.rows.shape[0], elements=values.numel(),
    )  # fmt: skip
    return torch.from_numpy(found.rows), merged.to(values.dtype).view(-1, *row)


@compiled
def _better(a: Any, b: Any, largest: bool) -> Any:
    """Return whether ``a`` replaces ``b`` as the extremum; NaN wins, as in torch.amax."""
    return a != a or (a > b if largest else a < b)


@compiled
def _merge(
    v: Any,
    keys: Any,
    places: Any,
    starts: Any,
    width: int,
    reduce: int,
    wide: Any,
    out: Any,
    lo: int,
    hi: int,
) -> None:
    """Task k reduces run k. ``v`` and ``out`` are flat, with rows of ``width``."""
    if width == 1 and reduce == _SUM:  # scalars: only the sum pays
        for k in range(lo, hi):
            s = wide
            for i in range(starts[k], starts[k + 1]):
                s += decode(v[keys[i] & places])
            out[k] = s
        return
    acc = np.full(width, wide)
    base, target = np.int64(v.ctypes.data), np.int64(out.ctypes.data)
    size, last = np.int64(width * v.itemsize), starts[hi]
    asked = starts[lo]
    for k in range(lo, hi):
        start, stop = starts[k], starts[k + 1]
        asked = max(asked, start)
        while asked < min(start + AHEAD, last):
            ask(base + np.int64(keys[asked] & places) * size, min(size, MOST))
            asked += 1
        # Row addresses, not sums of indices: only then are the loops free of checks and vectorised. Addresses, as
        # slices would be reference-counted.
        a = carray(pointer(base + np.int64(keys[start] & places) * size), width, v.dtype)
        result = carray(pointer(target + k * width * out.itemsize), width, out.dtype)
        if stop - start == 1:
            for j in range(width):
                result[j] = decode(a[j])
        elif reduce >= _AMAX:
            for j in range(width):
                result[j] = decode(a[j])
            for i in range(start + 1, stop):
                b = carray(pointer(base + np.int64(keys[i] & places) * size), width, v.dtype)
                for j in range(width):
                    if _better(decode(b[j]), result[j], reduce == _AMAX):
                        result[j] = decode(b[j])
        elif stop - start == 2 and reduce == _SUM:
            b = carray(pointer(base + np.int64(keys[start + 1] & places) * size), width, v.dtype)
            for j in range(width):
                result[j] = decode(a[j]) + decode(b[j])
        else:
            for j in range(width):
                acc[j] = decode(a[j])
            for i in range(start + 1, stop):
                if i + AHEAD < stop:
                    ask(base + np.int64(keys[i + AHEAD] & places) * size, min(size, MOST))
                b = carray(pointer(base + np.int64(keys[i] & places) * size), width, v.dtype)
                for j in range(width):
                    acc[j] += decode(b[j])
            if reduce == _MEAN:
                for j in range(width):
                    result[j] = acc[j] / (stop - start)
            else:
                for j in range(width):
                    result[j] = acc[j]
