r"""Floating-point helpers for compiled loops: order as integers, storage, exponential.

Like ``decode``, each is selected by type and branch-free, so that the loop around it vectorises:

- :func:`ordered` maps a number to an integer: larger numbers to larger integers (to smaller ones if ``turn`` is -1
  instead of 0), both zeros to one, NaN above all. Integer maxima vectorise; those of numbers do not, because
  NaN keeps LLVM from it. No floating-point number has the least integer. :func:`restored` is the inverse.
- :func:`encode` is the inverse of ``decode``: rounded to nearest, ties to even.
- :func:`exponential` is :math:`e^x = 2^n e^r`, n the integer nearest to :math:`x / \ln 2`, :math:`r = x - n \ln 2`
  in two parts, and :math:`(e^r - 1 - r) / r^2` a polynomial (minimax on :math:`|r| \le \ln 2 / 2`, found by
  exchange: relative error 3e-9, 4e-18). Numba would call the C library once for each number, ten times slower.
  Errors stay below 1.1 units in the last place; subnormal results, overflow, inf and NaN are correct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

# Sums inside an exponential must not be reordered, whatever its caller may do: r is exact only as it is written.
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


def exponential(x: Any) -> Any:
    """E to the power of ``x``."""
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


@overload(exponential, jit_options=_EXACT)
def _exponential(x: Any) -> Any:
    return _exponential32 if x == types.float32 else _exponential64


_SHIFT32 = np.float32(1.5 * 2**23)  # added to a small number, leaves its nearest integer in the last bits
_PER_LN2_32 = np.float32(1.4426950408889634)
_LN2_HIGH_32 = np.float32(0.693359375)  # ten bits: its product with n is exact
_LN2_LOW_32 = np.float32(0.6931471805599453 - 0.693359375)


def _exponential32(x: Any) -> Any:
    nothing = x < np.float32(-104)  # NaN is not
    x = np.float32(0) if nothing else x  # an underflowing product would take a hundred cycles
    x = np.float32(89) if x > np.float32(89) else x
    shifted = np.float32(x * _PER_LN2_32 + _SHIFT32)
    n = np.float32(shifted - _SHIFT32)
    r = np.float32(np.float32(x - n * _LN2_HIGH_32) - n * _LN2_LOW_32)
    p = np.float32(0.0013814577426844015)
    p = np.float32(p * r + np.float32(0.00836873803546272369))
    p = np.float32(p * r + np.float32(0.041668389403246455))
    p = np.float32(p * r + np.float32(0.166665204751491245))
    p = np.float32(p * r + np.float32(0.499999934423064185))
    p = np.float32(np.float32(p * r) * r + r)
    p = np.float32(p + np.float32(1))
    # 2**n in two factors: n reaches from -150 (subnormal results) to 128 (overflow).
    whole = np.int32(shifted.view(np.int32) - np.int32(0x4B400000))
    half = np.int32(whole >> np.int32(1))
    first = np.int32((half + np.int32(127)) << np.int32(23)).view(np.float32)
    second = np.int32((whole - half + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0) if nothing else np.float32(np.float32(p * first) * second)


_SHIFT64 = np.float64(1.5 * 2**52)
_LN2_HIGH_64 = np.float64(float.fromhex("0x1.62e42feep-1"))  # 32 bits
_LN2_LOW_64 = np.float64(1.9082149292705877e-10)


def _exponential64(x: Any) -> Any:
    nothing = x < -746.0
    x = 0.0 if nothing else x
    x = 710.0 if x > 710.0 else x
    shifted = np.float64(x * 1.4426950408889634 + _SHIFT64)
    n = shifted - _SHIFT64
    r = (x - n * _LN2_HIGH_64) - n * _LN2_LOW_64
    p = 2.49999189247804578e-8
    p = p * r + 2.76302688211271681e-7
    p = p * r + 2.75575869823870465e-6
    p = p * r + 2.48014930647684873e-5
    p = p * r + 1.98412695057792226e-4
    p = p * r + 1.38888889436358124e-3
    p = p * r + 8.33333333349484222e-3
    p = p * r + 4.16666666665302707e-2
    p = p * r + 0.16666666666666412
    p = p * r + 0.500000000000001059
    p = (p * r * r + r) + 1.0
    whole = np.int64(shifted.view(np.int64) - np.int64(0x4338000000000000))
    half = np.int64(whole >> np.int64(1))
    first = np.int64((half + np.int64(1023)) << np.int64(52)).view(np.float64)
    second = np.int64((whole - half + np.int64(1023)) << np.int64(52)).view(np.float64)
    return 0.0 if nothing else p * first * second
