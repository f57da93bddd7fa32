"""The loops of the updates, one for each rule; see ``cpu.py``.

Row k of the work is row ``rows[k]``; ``bases[i]`` is the address of the parameter (i = 0) or of a state. The scalars
are those of the rules; ``factor`` multiplies the merged gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from maskgrad.kernels.cpu.compiler import ask, compiled, inlined, pointer

AHEAD = 8  # rows between prefetching one and reading it


@inlined
def _row(address: Any, width: int, dtype: Any) -> Any:
    """A row by its address. A slice would be reference-counted, twice for each row."""
    return carray(pointer(address), width, dtype)


@inlined
def _ask_ahead(
    bases: Any,
    rows: Any,
    memory: Any,
    keys: Any,
    places: Any,
    starts: Any,
    size: Any,
    kinds: int,
    k: int,
    hi: int,
) -> None:
    """Prefetch row k + AHEAD of parameter and states, ``kinds`` together, and its gradients."""
    later = k + AHEAD
    if later < hi:
        for i in range(starts[later], min(starts[later + 1], starts[later] + AHEAD)):
            ask(memory + np.int64(keys[i] & places) * size, size)
        for i in range(kinds):
            ask(bases[i] + rows[later] * size, size)


@inlined
def _merge_run(
    memory: Any, size: Any, dtype: Any, keys: Any, places: Any, start: int, stop: int, width: int, factor: Any,
    decay: Any, p: Any, wide: Any, g: Any,
) -> None:  # fmt: skip
    """Let g = factor * the sum of the run, rounded once, + decay * the row."""
    a = _row(memory + np.int64(keys[start] & places) * size, width, dtype)
    if stop - start == 1:
        for j in range(width):
            g[j] = factor * a[j]
    elif stop - start == 2:
        b = _row(memory + np.int64(keys[start + 1] & places) * size, width, dtype)
        for j in range(width):
            g[j] = factor * (a[j] + b[j])
    else:
        for j in range(width):
            wide[j] = a[j]
        for i in range(start + 1, stop):
            b = _row(memory + np.int64(keys[i] & places) * size, width, dtype)
            for j in range(width):
                wide[j] += b[j]
        for j in range(width):
            g[j] = factor * dtype.type(wide[j])
    if decay != 0:
        for j in range(width):
            g[j] += decay * p[j]


@compiled
def sgd(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, fresh: Any,
    factor: Any, decay: Any, lr: Any, momentum: Any, undamped: Any, buffered: bool, nesterov: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    """SGD; ``fresh`` marks the rows whose buffer has not been started."""
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    memory, size, dtype = np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype
    for k in range(lo, hi):
        _ask_ahead(bases, rows, memory, keys, places, starts, size, 2 if buffered else 1, k, hi)
        row = rows[k]
        p = _row(bases[0] + row * size, width, dtype)
        _merge_run(
            memory, size, dtype, keys, places, starts[k], starts[k + 1], width, factor, decay, p, wide, g
        )
        if buffered:
            b = _row(bases[1] + row * size, width, dtype)
            if fresh.size and fresh[row] != 0:
                fresh[row] = 0
                for j in range(width):
                    b[j] = g[j]
            else:
                for j in range(width):
                    b[j] = momentum * b[j] + undamped * g[j]
            for j in range(width):
                g[j] = g[j] + momentum * b[j] if nesterov else b[j]
        for j in range(width):
            p[j] -= lr * g[j]


@compiled
def adagrad(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any,
    decay: Any, lr: Any, eps: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Adagrad, one state for each entry."""
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    memory, size, dtype = np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype
    for k in range(lo, hi):
        _ask_ahead(bases, rows, memory, keys, places, starts, size, 2, k, hi)
        row = rows[k]
        p = _row(bases[0] + row * size, width, dtype)
        _merge_run(
            memory, size, dtype, keys, places, starts[k], starts[k + 1], width, factor, decay, p, wide, g
        )
        s = _row(bases[1] + row * size, width, dtype)
        for j in range(width):
            s[j] += g[j] * g[j]
            p[j] -= lr * g[j] / (np.sqrt(s[j]) + eps)


@compiled
def rowwise_adagrad(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any,
    decay: Any, lr: Any, eps: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Adagrad, one state for each row: the mean of its squares."""
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    memory, size, dtype = np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype
    for k in range(lo, hi):
        _ask_ahead(bases, rows, memory, keys, places, starts, size, 1, k, hi)
        row = rows[k]
        p = _row(bases[0] + row * size, width, dtype)
        _merge_run(
            memory, size, dtype, keys, places, starts[k], starts[k + 1], width, factor, decay, p, wide, g
        )
        squares = np.float64(0)
        for j in range(width):
            squares += np.float64(g[j]) * np.float64(g[j])
        state = _row(bases[1] + row * v.itemsize, 1, dtype)
        state[0] += v.dtype.type(squares / width)
        scale = lr / (np.sqrt(state[0]) + eps)
        for j in range(width):
            p[j] -= scale * g[j]


@compiled
def adam(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any,
    decay: Any, rate: Any, new1: Any, beta2: Any, new2: Any, root2: Any, eps: Any, shrink: Any, amsgrad: bool,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Adam; ``new1`` is 1 - beta1, ``root2`` the root of the second bias correction, ``shrink`` AdamW's decay."""
    g, wide = np.full(width, rate), np.empty(width, np.float64)
    memory, size, dtype = np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype
    for k in range(lo, hi):
        _ask_ahead(bases, rows, memory, keys, places, starts, size, 4 if amsgrad else 3, k, hi)
        row = rows[k]
        p = _row(bases[0] + row * size, width, dtype)
        _merge_run(
            memory, size, dtype, keys, places, starts[k], starts[k + 1], width, factor, decay, p, wide, g
        )
        m = _row(bases[1] + row * size, width, dtype)
        s = _row(bases[2] + row * size, width, dtype)
        for j in range(width):
            m[j] += new1 * (g[j] - m[j])
            s[j] = beta2 * s[j] + new2 * g[j] * g[j]
            g[j] = s[j]
        if amsgrad:
            t = _row(bases[3] + row * size, width, dtype)
            for j in range(width):
                t[j] = t[j] if t[j] > s[j] or t[j] != t[j] else s[j]
                g[j] = t[j]
        for j in range(width):
            p[j] = shrink * p[j] - rate * m[j] / (np.sqrt(g[j]) / root2 + eps)


@compiled
def rmsprop(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any,
    decay: Any, lr: Any, alpha: Any, new: Any, eps: Any, momentum: Any, centered: bool, buffered: bool, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """RMSprop; where it is not centered or has no buffer, the parameter replaces them (and is prefetched once more)."""
    g, wide, spread = np.full(width, lr), np.empty(width, np.float64), np.full(width, lr)
    memory, size, dtype = np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype
    for k in range(lo, hi):
        _ask_ahead(bases, rows, memory, keys, places, starts, size, 4, k, hi)
        row = rows[k]
        p = _row(bases[0] + row * size, width, dtype)
        _merge_run(
            memory, size, dtype, keys, places, starts[k], starts[k + 1], width, factor, decay, p, wide, g
        )
        s = _row(bases[1] + row * size, width, dtype)
        for j in range(width):
            s[j] = alpha * s[j] + new * g[j] * g[j]
            spread[j] = s[j]
        if centered:
            a = _row(bases[2] + row * size, width, dtype)
            for j in range(width):
                a[j] += new * (g[j] - a[j])
                spread[j] -= a[j] * a[j]
        for j in range(width):
            g[j] /= np.sqrt(spread[j]) + eps
        if buffered:
            b = _row(bases[3] + row * size, width, dtype)
            for j in range(width):
                b[j] = momentum * b[j] + g[j]
                g[j] = b[j]
        for j in range(width):
            p[j] -= lr * g[j]
