"""Compacting the specified entries, and the inverse, without branches.

At a random mask the processor mispredicts every other branch, and PyTorch has one for each entry. Here each entry is
written, and overwritten by the next one if it is not selected. Values are only copied: their bits travel as integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.extending import overload
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, pointer
from maskgrad.kernels.cpu.memory import empty

__all__ = ["masked_scatter", "masked_select"]

#: A scalar as wide as an entry; the loops are compiled for its type.
UNITS: dict[int, Any] = {1: np.int8(0), 2: np.int16(0), 4: np.int32(0), 8: np.int64(0)}


def masked_select(values: Tensor, mask: Tensor) -> Tensor:
    values, mask, n = values.contiguous(), mask.contiguous(), mask.numel()
    number = _count(mask.data_ptr(), n)
    out = empty(number, values.dtype)
    _select(out.data_ptr(), values.data_ptr(), mask.data_ptr(), n, number, UNITS[values.element_size()])
    return out


def masked_scatter(source: Tensor, mask: Tensor) -> Tensor:
    given, mask, n = source.contiguous(), mask.contiguous(), mask.numel()
    number = _count(mask.data_ptr(), n)
    if given.numel() != number:
        raise ValueError(f"source must have one entry for each of {number} positions, got {given.numel()}")
    out = empty(mask.shape, source.dtype)
    _scatter(out.data_ptr(), given.data_ptr(), mask.data_ptr(), n, number, UNITS[source.element_size()])
    return out


def _array(address: Any, size: Any, unit: Any) -> Any:
    """The memory at ``address``, as an array of the type of ``unit``.

    Numba does not inline it: it would then drop writes to a slice.
    """
    raise NotImplementedError("compiled code only")


@overload(_array)
def _array_of(address: Any, size: Any, unit: Any) -> Any:
    kind = unit

    def array(address: Any, size: Any, unit: Any) -> Any:
        return carray(pointer(address), size, kind)

    return array


@compiled
def _count(mask: int, n: int) -> int:
    number, m = 0, carray(pointer(mask), n, np.uint8)
    for i in range(n):
        number += m[i] != 0
    return number


@compiled
def _select(out: int, values: int, mask: int, n: int, number: int, unit: Any) -> None:
    v, m, o = _array(values, n, unit), carray(pointer(mask), n, np.uint8), _array(out, number, unit)
    k = 0
    for i in range(n):
        if k == number:
            break
        o[k] = v[i]
        k += m[i] != 0


@compiled
def _scatter(out: int, source: int, mask: int, n: int, number: int, unit: Any) -> None:
    s, m, o = _array(source, number, unit), carray(pointer(mask), n, np.uint8), _array(out, n, unit)
    k = 0
    for i in range(n):
        if k == number:
            o[i:] = 0
            break
        o[i] = s[k] * m[i]  # LLVM turns a selection into a branch
        k += m[i] != 0
