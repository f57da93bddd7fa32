"""The largest and the smallest of all numbers: without dimensions, which PyTorch's exporter wants to be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def _over_all(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def body(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if len(dim):
            return NotImplemented
        return function(x, tuple(range(x.ndim)), keepdim) if x.ndim else x.clone()

    return body


BODIES = {"amax": _over_all(torch.amax), "amin": _over_all(torch.amin)}
