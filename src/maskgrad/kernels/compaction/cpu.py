r"""Compacting the specified entries, and the inverse: a vector at a time, without branches.

At a random mask the processor mispredicts every other branch, and PyTorch has one for each entry. With AVX-512 one
instruction compacts the selected lanes of a vector; elsewhere each entry is written, and overwritten by the next
one if it is not selected. Values are only copied: their bits travel as integers.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, pointer
from maskgrad.kernels.cpu.memory import empty

__all__ = ["masked_scatter", "masked_select", "select_together"]

#: A scalar as wide as an entry; the loops are compiled for its type.
UNITS: dict[int, Any] = {1: np.int8(0), 2: np.int16(0), 4: np.int32(0), 8: np.int64(0)}
VECTOR = 64  # bytes
_FEATURES = llvmlite.binding.get_host_cpu_features()
#: Whether the CPU has such an instruction for entries of 4 bytes and more, and for smaller ones.
WIDE, NARROW = bool(_FEATURES.get("avx512f")), bool(_FEATURES.get("avx512vbmi2"))


def masked_select(values: Tensor, mask: Tensor) -> Tensor:
    return select_together((values,), mask)[0]


def select_together(tensors: tuple[Tensor, ...], mask: Tensor) -> tuple[Tensor, ...]:
    mask, n = mask.contiguous(), mask.numel()
    number = _count(mask.data_ptr(), n)
    found = []
    for x in tensors:
        values, out = x.contiguous(), empty(number, x.dtype)
        _select(out.data_ptr(), values.data_ptr(), mask.data_ptr(), n, number, UNITS[x.element_size()])
        found.append(out)
    return tuple(found)


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


def _mover(is_back: bool) -> Any:
    """Move entries from or to the lanes where a mask is True, compacted in memory; return their number.

    A compressing store does the same in one instruction, but is slow on some processors.
    """

    def move(_: Any, unit: Any, target: Any, source: Any, mask: Any) -> Any:
        lanes = 8 * VECTOR // unit.bitwidth
        entry, bit, byte, number, word, wide = map(ir.IntType, (unit.bitwidth, 1, 8, 64, lanes, 2 * lanes))
        vector, bits, booleans = (ir.VectorType(kind, lanes) for kind in (entry, bit, byte))
        suffix = f"v{lanes}i{unit.bitwidth}"
        pointers = (vector, entry if is_back else vector, booleans)

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            def call(name: str, result: Any, *given: Any) -> Any:
                kind = ir.FunctionType(result, [x.type for x in given])
                function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")  # type: ignore[no-untyped-call]
                return builder.call(function, given)

            to, start, known = (
                builder.inttoptr(address, kind.as_pointer())
                for address, kind in zip(arguments[1:], pointers, strict=True)
            )
            zeros = ir.Constant(vector, None)
            chosen = builder.icmp_unsigned("!=", builder.load(known, align=1), ir.Constant(booleans, None))
            count = builder.zext(call(f"ctpop.i{lanes}", word, builder.bitcast(chosen, word)), wide)
            if is_back:
                builder.store(call(f"masked.expandload.{suffix}", vector, start, chosen, zeros), to, align=1)
            else:
                values, one = builder.load(start, align=1), ir.Constant(wide, 1)
                moved = call(f"experimental.vector.compress.{suffix}", vector, values, chosen, zeros)
                first = builder.bitcast(builder.trunc(builder.sub(builder.shl(one, count), one), word), bits)
                alignment = ir.Constant(ir.IntType(32), 1)
                call(f"masked.store.{suffix}.p0", ir.VoidType(), moved, to, alignment, first)
            return builder.trunc(count, number) if lanes == 64 else builder.zext(count, number)

        return types.int64(unit, types.int64, types.int64, types.int64), generate

    return intrinsic(move)


_pack, _unpack = _mover(is_back=False), _mover(is_back=True)


@compiled
def _count(mask: int, n: int) -> int:
    number, m = 0, carray(pointer(mask), n, np.uint8)
    for i in range(n):
        number += m[i] != 0
    return number


@compiled
def _select(out: int, values: int, mask: int, n: int, number: int, unit: Any) -> None:
    v, m, o = _array(values, n, unit), carray(pointer(mask), n, np.uint8), _array(out, number, unit)
    size = v.itemsize
    lanes, k = VECTOR // size, 0
    stop = n - n % lanes if (WIDE if size >= 4 else NARROW) else 0
    for i in range(0, stop, lanes):
        k += _pack(unit, out + k * size, values + i * size, mask + i)
    for i in range(stop, n):
        if k == number:
            break
        o[k] = v[i]
        k += m[i] != 0


@compiled
def _scatter(out: int, source: int, mask: int, n: int, number: int, unit: Any) -> None:
    s, m, o = _array(source, number, unit), carray(pointer(mask), n, np.uint8), _array(out, n, unit)
    size = s.itemsize
    lanes, k = VECTOR // size, 0
    stop = n - n % lanes if (WIDE if size >= 4 else NARROW) else 0
    for i in range(0, stop, lanes):
        k += _unpack(unit, out + i * size, source + k * size, mask + i)
    for i in range(stop, n):
        if k == number:
            o[i:] = 0
            break
        o[i] = s[k] * m[i]  # LLVM turns a selection into a branch
        k += m[i] != 0
