"""Memory for results.

Fresh memory costs more than the kernels that fill it: Linux provides it in pages of 4 KiB, at about 1 us each where
measured (a virtual machine), 16 ms for 64 MiB. With ``madvise``, which numpy uses, too, it provides pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LARGE = 1 << 22  # bytes; as in numpy
_CPU = torch.device("cpu")


def empty(size: int | Sequence[int], dtype: torch.dtype) -> Tensor:
    """As ``torch.empty`` on the CPU; large tensors request huge pages."""
    if not isinstance(size, int) and len(size) > 0:  # a torch.Size takes 1 us of 2
        return advised(torch.empty(*size, dtype=dtype, device=_CPU))
    return advised(torch.empty(size, dtype=dtype, device=_CPU))


def advised(out: Tensor) -> Tensor:
    """Return new memory, with huge pages requested if it is large."""
    if out.nbytes >= LARGE and (advise := _madvise()) is not None:
        start = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (out.data_ptr() + out.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, stop - start, mmap.MADV_HUGEPAGE)  # a hint: without it only the time changes
    return out


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function
