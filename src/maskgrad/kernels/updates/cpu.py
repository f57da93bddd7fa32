r"""One optimizer step on the rows of a table that have a gradient: merge and update, in one pass.

Indices are sorted first (see ``sorting.py``), so each touched row belongs to one task and is read and written once;
merged gradients never reach memory. The rows of a large table lie at places that the processor cannot predict, so they
are prefetched: half the time for 262,144 rows of a 10^6 x 64 table. An index outside the table is found before anything
is written. Half-precision parameters and rows with gaps are not supported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray  # type: ignore[attr-defined]
from torch import Tensor

from maskgrad.kernels import updates as family
from maskgrad.kernels.cpu.compiler import array, ask, compiled, inlined, pointer
from maskgrad.kernels.cpu.sorting import Runs, fits, runs
from maskgrad.kernels.cpu.threads import run

AHEAD = 8  # rows between prefetching one and reading it


def update_table(
    rule: str, tables: Sequence[Tensor | None], indices: Tensor, values: Tensor, **numbers: Any
) -> bool:
    """As :func:`maskgrad.kernels.update_rows_`."""
    param: Any = tables[0]
    if not (
        param.dtype in (torch.float32, torch.float64)
        and all(t is None or (t.dtype == param.dtype and t.is_contiguous()) for t in tables)
        and values.numel() > 0
        and fits(len(values), len(param))
    ):
        return False
    if rule in ("sgd", "rmsprop") and not numbers.get("momentum"):
        tables = [*tables[:-1], None]  # the buffer
    found = runs(indices, len(param))
    gradient = values.detach().to(param.dtype).reshape(-1).contiguous()
    ready = prepared(rule, tables)
    update_prepared(ready, found, array(gradient), *bound(rule, ready, **numbers))
    return True


class Table(NamedTuple):
    """The memory of a table and its states: arguments of the loops that do not change between steps."""

    bases: Any
    read: int
    width: int
    dtype: torch.dtype
    present: tuple[bool, ...]


def prepared(rule: str, tables: Sequence[Tensor | None]) -> Table:
    """A parameter and its states, or None for those that are not used, all contiguous."""
    param: Any = tables[0]
    # Numba compiles one version for arrays and one for None: the parameter replaces a state that is not used.
    bases = [(param if t is None else t).data_ptr() for t in tables]
    present = tuple(t is not None for t in tables)
    # rows that are prefetched; the state of a row is one value
    read = 1 if rule == "rowwise_adagrad" else max(i + 1 for i, is_used in enumerate(present) if is_used)
    return Table(np.array(bases, np.int64), read, math.prod(param.shape[1:]), param.dtype, present)


def bound(rule: str, table: Table, **numbers: Any) -> tuple[Any, ...]:
    """The loop of a rule, its scalars in the type of the table, and which states are used."""
    number: Any = np.float32 if table.dtype == torch.float32 else np.float64
    flags = (*table.present, bool(numbers.get("nesterov")))
    return _LOOPS[rule], tuple(map(number, family.scalars(rule, numbers))), flags


def update_prepared(table: Table, found: Runs, gradient: Any, loop: Any, numbers: Any, flags: Any) -> None:
    """Update the rows in ``found``; ``gradient`` is a 1-D array of the dtype of the table."""
    run(
        loop, table.bases, table.read, found.rows, gradient, found.keys, found.places, found.starts, table.width,
        numbers, flags, tasks=len(found.rows), elements=3 * table.width * len(found.keys),
    )  # fmt: skip


@inlined
def _row(address: Any, width: int, dtype: Any) -> Any:
    """A row by its address. A slice would be reference-counted, twice for each row."""
    return carray(pointer(address), width, dtype)


def _loop(rule: Any) -> Any:
    """Make the loop of ``rule(p, g, bases, row, size, width, dtype, n, flags)``.

    It updates row ``p`` with the gradient ``g``; ``bases[i]`` is the address of the parameter (i = 0) or of a state,
    ``n`` are the scalars, ``flags`` say which tables are there, and the last one Nesterov.
    """

    @compiled
    def loop(
        bases: Any, read: int, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, n: Any,
        flags: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task k updates row ``rows[k]``."""
        g, wide = np.full(width, n[0]), np.empty(width, np.float64)
        memory, size, dtype, factor, decay = (
            np.int64(v.ctypes.data), np.int64(width * v.itemsize), v.dtype, n[0], n[1],
        )  # fmt: skip
        for k in range(lo, hi):
            later = k + AHEAD
            if later < hi:
                for i in range(starts[later], min(starts[later + 1], starts[later] + AHEAD)):
                    ask(memory + np.int64(keys[i] & places) * size, size)
                for i in range(read):
                    ask(bases[i] + rows[later] * size, size)
            row, start, stop = rows[k], starts[k], starts[k + 1]
            p = _row(bases[0] + row * size, width, dtype)
            # g = factor * the sum of the run, rounded once, + decay * the row
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
            rule(p, g, bases, row, size, width, dtype, n, flags)

    return loop


@inlined
def _sgd(p: Any, g: Any, bases: Any, row: int, size: int, width: int, dtype: Any, n: Any, flags: Any) -> None:
    if flags[1]:
        b = _row(bases[1] + row * size, width, dtype)
        for j in range(width):
            b[j] = n[3] * b[j] + n[4] * g[j]
        for j in range(width):
            g[j] = g[j] + n[3] * b[j] if flags[2] else b[j]
    for j in range(width):
        p[j] -= n[2] * g[j]


@inlined
def _adagrad(
    p: Any, g: Any, bases: Any, row: int, size: int, width: int, dtype: Any, n: Any, flags: Any
) -> None:
    s = _row(bases[1] + row * size, width, dtype)
    for j in range(width):
        s[j] += g[j] * g[j]
        p[j] -= n[2] * g[j] / (np.sqrt(s[j]) + n[3])


@inlined
def _rowwise_adagrad(
    p: Any, g: Any, bases: Any, row: int, size: int, width: int, dtype: Any, n: Any, flags: Any
) -> None:
    squares = np.float64(0)
    for j in range(width):
        squares += np.float64(g[j]) * np.float64(g[j])
    state = _row(bases[1] + row * (size // width), 1, dtype)
    state[0] += dtype.type(squares / width)
    scale = n[2] / (np.sqrt(state[0]) + n[3])
    for j in range(width):
        p[j] -= scale * g[j]


@inlined
def _adam(
    p: Any, g: Any, bases: Any, row: int, size: int, width: int, dtype: Any, n: Any, flags: Any
) -> None:
    m = _row(bases[1] + row * size, width, dtype)
    s = _row(bases[2] + row * size, width, dtype)
    for j in range(width):
        m[j] += n[3] * (g[j] - m[j])
        s[j] = n[4] * s[j] + n[5] * g[j] * g[j]
        g[j] = s[j]
    if flags[3]:
        t = _row(bases[3] + row * size, width, dtype)
        for j in range(width):
            t[j] = t[j] if t[j] > s[j] or t[j] != t[j] else s[j]
            g[j] = t[j]
    for j in range(width):
        p[j] = n[8] * p[j] - n[2] * m[j] / (np.sqrt(g[j]) / n[6] + n[7])


@inlined
def _rmsprop(
    p: Any, g: Any, bases: Any, row: int, size: int, width: int, dtype: Any, n: Any, flags: Any
) -> None:
    s = _row(bases[1] + row * size, width, dtype)
    for j in range(width):
        s[j] = n[3] * s[j] + n[4] * g[j] * g[j]
        g[j] /= np.sqrt(s[j]) + n[5]
    if flags[2]:
        b = _row(bases[2] + row * size, width, dtype)
        for j in range(width):
            b[j] = n[6] * b[j] + g[j]
            g[j] = b[j]
    for j in range(width):
        p[j] -= n[2] * g[j]


_LOOPS = {
    "sgd": _loop(_sgd),
    "adagrad": _loop(_adagrad),
    "rowwise_adagrad": _loop(_rowwise_adagrad),
    "adam": _loop(_adam),
    "rmsprop": _loop(_rmsprop),
}
