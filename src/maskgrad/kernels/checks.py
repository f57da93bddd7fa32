"""Argument checks shared by all kernels, run before any implementation."""

from __future__ import annotations

import torch
from torch import Tensor


def check_mask(values: Tensor, mask: Tensor, *_: object) -> None:
    """Raise a TypeError or ValueError unless ``mask`` is Boolean and has the shape of ``values``."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be a Boolean tensor (True = specified); got {mask.dtype}; convert with mask.bool()"
        )
    if values.shape != mask.shape:
        raise ValueError(
            f"mask must have the shape of values, {tuple(values.shape)}; got {tuple(mask.shape)}; "
            "expand it with mask.expand_as(values)"
        )


def check_rows(indices: Tensor, values: Tensor) -> None:
    """Raise a TypeError or ValueError unless ``indices`` are int64, with one row of ``values`` each."""
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise TypeError(f"indices must be a 1-D int64 tensor; got {indices.ndim}-D {indices.dtype}")
    if values.ndim < 1 or values.shape[0] != indices.shape[0]:
        raise ValueError(
            f"values must have one row for each of {indices.shape[0]} indices; got {tuple(values.shape)}"
        )
