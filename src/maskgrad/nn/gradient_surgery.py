"""Modules that are the identity in the forward pass: mask or reverse the gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients import mask_gradient, reverse_gradient
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns.mask_arguments import boolean_mask

__all__ = ["MaskGradient", "ReverseGradient"]


class MaskGradient(nn.Module):
    """The identity with a gradient that passes only where a mask is True.

    Args:
        mask: Boolean tensor (or integers 0 and 1) with as many dimensions as the inputs, size 1 where it repeats; True
            = the gradient passes. A buffer: it moves with the module and is saved with it.

    Raises:
        TypeError: ``mask`` is not a tensor of Booleans or integers.
        ValueError: it contains other integers.

    Example:
        >>> layer = mg.nn.MaskGradient(torch.tensor([True, False]))
        >>> x = torch.ones(2, requires_grad=True)
        >>> layer(x).sum().backward()
        >>> x.grad
        tensor([1., 0.])

    Dense equivalent: :func:`maskgrad.mask_gradient`.
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", boolean_mask(mask, true="the gradient passes"))

    def forward(self, x: Tensor | MaskedTensor) -> Any:
        """``x``, with its gradient masked."""
        return mask_gradient(x, self.mask)

    def extra_repr(self) -> str:
        """The size of the mask."""
        return f"mask of shape {tuple(self.mask.shape)}"


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
