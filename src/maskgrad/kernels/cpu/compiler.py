"""How loops are compiled, and how tensors reach them.

Compiled functions take flat arrays, scalars and a range of tasks ``[lo, hi)``; they start no threads of their own (see
``threads.py``) and hold no lock. Their machine code is cached on disk. Numba decides whether a cached file is
stale by the source file of the function alone: **a compiled function never calls one that lives in another
file**, except through :func:`decode`, :func:`ask` and :func:`pointer` below and what ``floating.py`` has (after a
change there, delete the ``__pycache__`` of this folder).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from maskgrad.kernels.cpu.first_calls import tell_of_compilation

__all__ = ["array", "ask", "compiled", "decode", "flat", "inlined", "pointer", "reordered"]

tell_of_compilation()

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered (that is what vectorises them) and contracted; NaN, inf and signed zeros keep their meaning.
_REORDER = {"reassoc", "contract"}


def compiled(function: F) -> F:
    """Compile ``function`` in nopython mode on first call; exact floating-point order."""
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)  # type: ignore[return-value]


def inlined(function: F) -> F:
    """Part of the functions that call it: a call would count references to each array that it is given."""
    return numba.njit(nogil=True, error_model="numpy", inline="always")(function)  # type: ignore[return-value]


def reordered(function: F) -> F:
    """As :func:`compiled`, for sums whose terms may be added in any order fixed at compile time."""
    return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_REORDER)(function)  # type: ignore[return-value]


def array(x: Tensor) -> Any:
    """A numpy array on the memory of ``x``. Numba knows no halves: bfloat16 travels as uint16, float16 as int16."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.uint16).numpy()
    if x.dtype == torch.float16:
        return x.view(torch.int16).numpy()
    return x.view(torch.uint8).numpy() if x.dtype == torch.bool else x.numpy()


def flat(x: Tensor) -> Any:
    """The memory that ``x`` spans, gaps included, as a 1-D array: element (i, j, ...) is at sum(i * stride)."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return array(x.detach().as_strided((span,), (1,)))


def decode(x: Any) -> Any:
    """The number that the stored ``x`` stands for: float32 from the bits of a half, anything else as it is."""
    raise NotImplementedError("compiled code only")


@overload(decode)
def _decode_half(x: Any) -> Any:
    if x == types.uint16:
        return _decode_bfloat16
    return _decode_float16 if x == types.int16 else None


# Left to LLVM, the function that does nothing stays a call in freshly compiled loops over columns, and they take ten
# times as long as the same loops loaded from the cache.
@overload(decode, inline="always")
def _decode_other(x: Any) -> Any:
    return None if x in (types.uint16, types.int16) else _decode_nothing


def _decode_nothing(x: Any) -> Any:
    return x


def _decode_bfloat16(x: Any) -> Any:
    return np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)  # the upper half of a float32


def _decode_float16(x: Any) -> Any:
    # Exponent and fraction move to their float32 places; 2**112 corrects the bias, subnormals included.
    # Exponent 31 (inf, NaN) must become 255. Branch-free, so that the loop around it vectorises.
    magnitude = np.uint32(np.uint32(x & np.int16(0x7FFF)) << np.uint32(13))
    sign = np.uint32(np.uint32(x & np.int16(-0x8000)) << np.uint32(16))
    finite = np.float32(magnitude.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    bits = np.uint32(magnitude | np.uint32(0x7F800000)) if magnitude >= np.uint32(0x0F800000) else finite
    return np.uint32(bits | sign).view(np.float32)


def _prefetch(_: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``, without waiting; an address outside any array does no harm.

    Rows at random places are what a processor cannot foresee: it would wait for memory at each of them.
    """

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0"
        )
        read, keep, data_cache = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte), read, keep, data_cache])

    return types.void(types.int64), generate


def _pointer(_: Any, address: Any) -> Any:
    """What ``numba.carray`` takes: the memory at ``address``, of a tensor that the caller keeps alive."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


prefetch: Any = intrinsic(_prefetch)
LINE = 64  # bytes that memory hands out at once


@inlined
def ask(address: Any, size: Any) -> None:
    """Ask for the ``size`` bytes at ``address``; they may end in one line more, which is waited for."""
    for offset in range(0, size, LINE):
        prefetch(address + offset)


pointer: Any = intrinsic(_pointer)
