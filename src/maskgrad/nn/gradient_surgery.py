"""A module that is the identity in the forward pass, and reverses the gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients import reverse_gradient
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["ReverseGradient"]


class ReverseGradient(nn.Module):
    """The identity with a gradient of opposite sign: a gradient reversal layer.

    Layers before it are trained to maximize the loss that layers after it minimize. ``scale`` is a buffer:
    ``layer.scale.fill_(s)`` changes it at any time, without a recompilation under ``torch.compile``.

    Args:
        scale: finite number by which the gradient is also multiplied.

    Raises:
        TypeError: ``scale`` is not a number.
        ValueError: ``scale`` is not finite.

    Example:
        >>> layer = mg.nn.ReverseGradient(scale=0.5)
        >>> x = torch.ones(2, requires_grad=True)
        >>> layer(x).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])

    Dense equivalent: :func:`maskgrad.reverse_gradient`.
    """

    scale: Tensor

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(scale, (int, float)) or isinstance(scale, bool):
            raise TypeError(f"scale must be a number, found {type(scale).__name__}; set layer.scale later")
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, found {scale}")
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor | MaskedTensor) -> Any:
        """``x`` with its gradient reversed."""
        return reverse_gradient(x, self.scale)

    def extra_repr(self) -> str:
        """The strength."""
        return f"scale={self.scale.item():g}"
