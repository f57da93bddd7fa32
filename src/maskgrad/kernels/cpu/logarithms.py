r"""Logarithms for compiled loops: Numba would call the C library once per value, ten times slower.

- :func:`logarithm` is :math:`\ln x = n \ln 2 + \ln f` with :math:`f \in [\sqrt{1/2}, \sqrt 2)`, read off the bits of
  :math:`x`, and :math:`\ln f = 2 (s + s^3/3 + s^5/5 + \dots)`, :math:`s = (f - 1) / (f + 1)`.
- :func:`logarithm_1p` is :math:`\ln(1 + y) = \ln u + (y - (u - 1)) / u` with :math:`u = 1 + y` rounded: the second
  term gives back what rounding took away.

Chosen by type and branch-free, so that the loop around them vectorises. Positive values only, except for 0, whose
logarithm is -inf; NaN and inf are kept. Errors stay below 3 units in the last place (below 1e-7, 2e-16, where the
result is smaller).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload


def logarithm(x: Any) -> Any:
    """The natural logarithm of ``x``, not negative."""
    raise NotImplementedError("compiled code only")


def logarithm_1p(y: Any) -> Any:
    """The natural logarithm of 1 + ``y``, ``y`` at least -1."""
    raise NotImplementedError("compiled code only")


# Nothing is reordered, whatever the caller allows: the rounding error is known only in this order.
@overload(logarithm, jit_options={"fastmath": False})
def _logarithm(x: Any) -> Any:
    return _logarithm32 if x == types.float32 else _logarithm64


@overload(logarithm_1p, jit_options={"fastmath": False})
def _logarithm_1p(y: Any) -> Any:
    return _logarithm_1p_32 if y == types.float32 else _logarithm_1p_64


_HALF32 = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)


def _logarithm32(x: Any) -> Any:
    small = x < np.float32(1.1754944e-38)
    # a subnormal number has no exponent
    scaled = np.float32(x * np.float32(2.0**24)) if small else np.float32(x)
    moved = np.int32(np.float32(scaled).view(np.int32) - _HALF32)
    n = np.float32(np.int32(moved >> np.int32(23)))
    n = np.float32(n - np.float32(24)) if small else n
    f = np.int32(np.int32(moved & np.int32(0x7FFFFF)) + _HALF32).view(np.float32)
    s = np.float32((f - np.float32(1)) / (f + np.float32(1)))
    z = np.float32(s * s)
    p = np.float32(1 / 11)
    p = np.float32(p * z + np.float32(1 / 9))
    p = np.float32(p * z + np.float32(1 / 7))
    p = np.float32(p * z + np.float32(1 / 5))
    p = np.float32(p * z + np.float32(1 / 3))
    tail = np.float32(np.float32(2) * s * np.float32(p * z))
    low = np.float32(
        tail + n * np.float32(-2.12194440e-4)
    )  # ln 2 in two parts: the product with the first is exact
    result = np.float32(np.float32(np.float32(2) * s + low) + n * np.float32(0.693359375))
    result = np.float32(-np.inf) if x == np.float32(0) else result
    return result if x < np.float32(np.inf) else np.float32(x)  # inf, and NaN


_HALF64 = np.int64(0x3FE6A09E667F3BCD)


def _logarithm64(x: Any) -> Any:
    small = x < 2.2250738585072014e-308
    scaled = np.float64(x * 2.0**54) if small else np.float64(x)
    moved = np.int64(np.float64(scaled).view(np.int64) - _HALF64)
    n = np.float64(np.int64(moved >> np.int64(52)))
    n = n - 54.0 if small else n
    f = np.int64(np.int64(moved & np.int64(0xFFFFFFFFFFFFF)) + _HALF64).view(np.float64)
    s = (f - 1.0) / (f + 1.0)
    z = s * s
    p: Any = 1 / 23
    p = p * z + 1 / 21
    p = p * z + 1 / 19
    p = p * z + 1 / 17
    p = p * z + 1 / 15
    p = p * z + 1 / 13
    p = p * z + 1 / 11
    p = p * z + 1 / 9
    p = p * z + 1 / 7
    p = p * z + 1 / 5
    p = p * z + 1 / 3
    low = 2.0 * s * (p * z) + n * 1.9082149292705877e-10
    result = (2.0 * s + low) + n * 0.6931471803691238
    result = -np.inf if x == 0.0 else result
    return result if x < np.inf else x


def _logarithm_1p_32(y: Any) -> Any:
    u = np.float32(np.float32(1) + y)
    lost = np.float32((y - np.float32(u - np.float32(1))) / u)
    return np.float32(
        logarithm(u) + (lost if u > np.float32(0) and u < np.float32(np.inf) else np.float32(0))
    )


def _logarithm_1p_64(y: Any) -> Any:
    u = 1.0 + y
    lost = (y - (u - 1.0)) / u
    return logarithm(u) + (lost if u > 0.0 and u < np.inf else 0.0)
