"""Compiling and launching Triton kernels.

A kernel is started once for many *programs*; each writes its own results. So there
are no atomic operations, and results do not depend on which program runs first.

Where the environment variable ``TRITON_INTERPRET`` is 1 when Triton is imported, its interpreter runs the same source
on tensors in ordinary memory; the tests do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# Up to this size, offsets fit into 32 bits, including the ends of blocks that reach past the last entry.
_NARROW = 1 << 30


def compiled(function: F) -> F:
    """Compile ``function`` for the GPU on its first launch with arguments of these types."""
    return triton.jit(function)  # type: ignore[no-any-return]


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Start ``programs`` programs on the device of the tensors among ``arguments``, without waiting for them."""
    if not programs:
        return
    device = next(x.device for x in arguments if isinstance(x, Tensor))
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **constants)
    else:
        kernel[(programs,)](*arguments, **constants)


def index_type(*tensors: Tensor | None) -> Any:
    """Integer type that can hold every memory offset in ``tensors`` and every count of entries."""
    for x in tensors:
        if x is None:
            continue
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        if max(span, x.numel()) >= _NARROW:
            return tl.int64
    return tl.int32


def precision(dtype: torch.dtype) -> Any:
    """Type to compute in: float64 for float64, float32 for other floats, int64 for integers and Booleans."""
    if dtype.is_floating_point:
        return tl.float64 if dtype == torch.float64 else tl.float32
    return tl.int64


def power_of_two(size: int, most: int) -> int:
    """The smallest power of two that is at least ``size``, but not above ``most``."""
    return min(1 << max(size - 1, 0).bit_length(), most)
