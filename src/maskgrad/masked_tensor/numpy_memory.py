"""Numbers in numpy's memory as tensors, whatever the order of their bytes and whoever may write there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["holds_numbers", "tensor_of"]

#: kinds and sizes of numpy's dtypes that torch has too: b Boolean, i and u integers, f floating point, c complex
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Whether torch has this dtype, in either order of bytes."""
    return dtype.itemsize in _SIZES.get(dtype.kind, ())


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """The array as a tensor of its shape; its dtype is one that :func:`holds_numbers`.

    The memory is shared where a tensor may stand for it. It is copied if the order of the bytes is foreign,
    if the array is read-only (its owner relies on that, and PyTorch has no read-only tensors), or if a stride
    is negative.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
