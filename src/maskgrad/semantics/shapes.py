"""Shapes of results, from PyTorch's own functions applied to tensors without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.semantics.stored.entries import is_masked, shape_of


def order_after(function: Callable[..., Any], rank: int, /, *args: Any, **kwargs: Any) -> list[int]:
    """The order of the ``rank`` dimensions after a function that permutes them."""
    model = torch.empty([2 + d for d in range(rank)], dtype=torch.bool, device="meta")
    return [size - 2 for size in function(model, *args, **kwargs).shape]


def shape_after(function: Callable[..., Any], shape: torch.Size, /, *args: Any, **kwargs: Any) -> torch.Size:
    """The shape of a function's result for an operand of ``shape``; reads only the shape of other operands."""
    model = torch.empty(shape, dtype=torch.bool, device="meta")
    if function is torch.Tensor.unflatten:  # written in Python, and not traceable by torch.compile
        function = torch.unflatten
    args = tuple([torch.empty(shape_of(a), device="meta") if is_masked(a) else a for a in args])
    found: torch.Size = function(model, *args, **kwargs).shape
    return found
