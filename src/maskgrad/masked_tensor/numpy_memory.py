"""Conversion of NumPy arrays to tensors, in any byte order, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["holds_numbers", "in_numpy", "tensor_of"]

#: Wider dtypes for those missing in another library.
_EXACT_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}

#: kinds and sizes of NumPy's dtypes supported by torch: b Boolean, i and u integers, f floating point, c complex
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether torch has this dtype, in either byte order."""
    return dtype.itemsize in _SIZES.get(dtype.kind, ())


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """Convert an array to a tensor of its shape; its dtype is one that :func:`holds_numbers`.

    The memory is shared if possible. It is copied if the byte order is foreign,
    if the array is read-only (its owner relies on that, and PyTorch has no read-only tensors), or if a stride
    is negative.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def in_numpy(values: Tensor, widen: tuple[torch.dtype, ...] = tuple(_EXACT_WIDER)) -> np.ndarray[Any, Any]:
    """Convert values to NumPy, sharing memory if possible; dtypes in ``widen`` become wider ones."""
    plain = values.detach().cpu().resolve_conj().resolve_neg()
    return (plain.to(_EXACT_WIDER[plain.dtype]) if plain.dtype in widen else plain).numpy()
