r"""Storing floating-point numbers in compiled loops.

Like ``decode``, each is selected by type and branch-free, so that the loop around it vectorises:

- :func:`encode` is the inverse of ``decode``: rounded to nearest, ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

# Sums that round must not be reordered, whatever the caller may do.
_EXACT: Any = {"fastmath": {"contract"}}


def encode(x: Any, stored: Any) -> Any:
    """Return ``x`` encoded in the type of ``stored``: the bits of half precision, anything else unchanged."""
    raise NotImplementedError("compiled code only")


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
