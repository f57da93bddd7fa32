r"""Floating-point helpers for compiled loops: order as integers, and storage.

Like ``decode``, each is selected by type and branch-free, so that the loop around it vectorises:

- :func:`ordered` maps a number to an integer: larger numbers to larger integers (to smaller ones if ``turn`` is -1
  instead of 0), both zeros to one, NaN above all. Integer maxima vectorise; those of numbers do not, because
  NaN keeps LLVM from it. No floating-point number has the least integer. :func:`restored` is the inverse.
- :func:`encode` is the inverse of ``decode``: rounded to nearest, ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

# Sums that round must not be reordered, whatever the caller may do.
_EXACT: Any = {"fastmath": {"contract"}}


def ordered(x: Any, turn: Any) -> Any:
    """Return an integer that compares as ``x`` does, or the other way round; NaN is the largest in any case."""
    raise NotImplementedError("compiled code only")


def restored(key: Any, turn: Any, stored: Any) -> Any:
    """Inverse of :func:`ordered`: the value for the integer ``key``, encoded in the type of ``stored``."""
    raise NotImplementedError("compiled code only")


def unordered(key: Any) -> Any:
    """Return the floating-point value for the integer ``key`` (without a turn)."""
    raise NotImplementedError("compiled code only")


def encode(x: Any, stored: Any) -> Any:
    """Return ``x`` encoded in the type of ``stored``: the bits of half precision, anything else unchanged."""
    raise NotImplementedError("compiled code only")


@overload(ordered, jit_options=_EXACT)
def _ordered(x: Any, turn: Any) -> Any:
    if x == types.float32:
        return _ordered_float32
    if x == types.float64:
        return _ordered_float64
    return _ordered_int64 if x == types.int64 else _ordered_int32


def _ordered_float32(x: Any, turn: Any) -> Any:
    bits = np.float32(x + np.float32(0)).view(np.int32)  # -0 becomes 0
    key = np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)) ^ np.int32(turn))
    return np.int32(0x7FFFFFFF) if x != x else key


def _ordered_float64(x: Any, turn: Any) -> Any:
    bits = np.float64(x + 0.0).view(np.int64)
    key = np.int64(bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)) ^ np.int64(turn))
    return np.int64(0x7FFFFFFFFFFFFFFF) if x != x else key


def _ordered_int32(x: Any, turn: Any) -> Any:
    return np.int32(np.int32(x) ^ np.int32(turn))


def _ordered_int64(x: Any, turn: Any) -> Any:
    return np.int64(x ^ np.int64(turn))


@overload(restored, jit_options=_EXACT)
def _restored(key: Any, turn: Any, stored: Any) -> Any:
    if stored == types.float64:
        return _restored_float64
    narrow = stored in (types.float32, types.int16, types.uint16)  # half precision travels as the latter two
    return _restored_float32 if narrow else _restored_integer


def _restored_float32(key: Any, turn: Any, stored: Any) -> Any:
    return encode(unordered(np.int32(key ^ turn)), stored)


def _restored_float64(key: Any, turn: Any, stored: Any) -> Any:
    return unordered(np.int64(key ^ turn))


def _restored_integer(key: Any, turn: Any, stored: Any) -> Any:
    return key ^ turn


@overload(unordered, jit_options=_EXACT)
def _unordered(key: Any) -> Any:
    return _unordered32 if key == types.int32 else _unordered64


def _unordered32(key: Any) -> Any:
    return np.int32(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


def _unordered64(key: Any) -> Any:
    return np.int64(key ^ ((key >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))).view(np.float64)


@overload(encode, jit_options=_EXACT)
def _encode(x: Any, stored: Any) -> Any:
    if stored == types.uint16:
        return _encode_bfloat16
    return _encode_float16 if stored == types.int16 else _encode_nothing


def _encode_nothing(x: Any, stored: Any) -> Any:
    return x


def _encode_bfloat16(x: Any, stored: Any) -> Any:
    bits = np.float32(x).view(np.uint32)
    rounded = np.uint32(
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    )
    return np.uint16(np.uint32(0x7FC0) if x != x else rounded)


def _encode_float16(x: Any, stored: Any) -> Any:
    bits = np.float32(x).view(np.uint32)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # Normal: rebias the exponent and round off 13 bits; overflow becomes inf. Subnormal: 0.5 has their unit, 2**-24.
    odd = np.uint32((size >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32((size - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13))
    normal = np.uint32(0x7C00) if size >= np.uint32(0x477FF000) else normal
    small = np.uint32(
        np.float32(size.view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
    )
    half = small if size < np.uint32(0x38800000) else normal
    half = np.uint32(0x7E00) if x != x else half
    return np.int16(np.uint32(half | ((bits >> np.uint32(16)) & np.uint32(0x8000))))
