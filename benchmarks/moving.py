"""The yardstick of steps on rows: the same rows read and written, and nothing computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray  # type: ignore[attr-defined]
from torch import Tensor

from maskgrad.kernels.cpu.compiler import ask, compiled, pointer
from maskgrad.kernels.cpu.sorting import runs
from maskgrad.kernels.cpu.threads import run

__all__ = ["moving"]

AHEAD = 8


def moving(
    number_of_tables: int, rows: int, width: int, batches: list[tuple[Tensor, Tensor]]
) -> Callable[[], None]:
    """Read and write each row that a batch names in so many tables, and read its gradients once; batches in turn.

    Values go from one table to the next, and the gradient's into the last. The rows are known beforehand.
    """
    tables = [torch.zeros(rows, width) for _ in range(number_of_tables)]
    bases = np.array([t.data_ptr() for t in tables], np.int64)
    ready = [(runs(ids, rows), values.reshape(-1).numpy()) for ids, values in batches]
    turn = 0

    def move() -> None:
        nonlocal turn
        found, values = ready[turn % len(ready)]
        turn += 1
        assert len(tables) == len(bases)  # they live as long as this function
        run(
            _move, bases, found.rows, values, found.keys, found.places, found.starts, width,
            tasks=len(found.rows), elements=3 * values.size,
        )  # fmt: skip

    return move


@compiled
def _move(
    bases: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, lo: int, hi: int
) -> None:
    memory, size = np.int64(v.ctypes.data), np.int64(width * v.itemsize)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            for i in range(starts[k + AHEAD], starts[k + AHEAD + 1]):
                ask(memory + np.int64(keys[i] & places) * size, size)
            for t in range(bases.size):
                ask(bases[t] + rows[k + AHEAD] * size, size)
        for t in range(bases.size - 1):
            to = carray(pointer(bases[t] + rows[k] * size), width, v.dtype)
            source = carray(pointer(bases[t + 1] + rows[k] * size), width, v.dtype)
            for j in range(width):
                to[j] = source[j]
        last = carray(pointer(bases[bases.size - 1] + rows[k] * size), width, v.dtype)
        for i in range(starts[k], starts[k + 1]):
            gradient = carray(pointer(memory + np.int64(keys[i] & places) * size), width, v.dtype)
            for j in range(width):
                last[j] = gradient[j]
