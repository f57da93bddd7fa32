"""The pattern stored as one Boolean per entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Facts, Pattern

__all__ = ["BooleanPattern", "check_mask"]


class BooleanPattern(Pattern):
    """One Boolean per entry, True where the entry is specified (the polarity of ``torch.masked``).

    The mask may be an expanded view: broadcasting a mask to its data copies nothing.
    """

    __slots__ = ("_mask",)

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask

    @property
    def mask(self) -> Tensor:
        """As stored."""
        return self._mask

    @property
    def layout(self) -> torch.layout:
        """The storage layout of the values that this pattern describes."""
        return torch.strided

    def tensors(self) -> tuple[Tensor, ...]:
        """The mask."""
        return (self._mask,)

    def facts(self) -> Facts:
        """Nothing but the layout: the mask has its own shape."""
        return Facts("strided")

    def rebuilt(self, tensors: tuple[Any, ...]) -> BooleanPattern:
        """Around another mask."""
        return BooleanPattern(tensors[0])

    def __repr__(self) -> str:
        return f"BooleanPattern({self._mask})"


def check_mask(mask: object, shape: torch.Size, device: torch.device) -> Tensor:
    """Return ``mask`` broadcast to ``shape``, or say what is wrong with it.

    Raises:
        TypeError: ``mask`` is not a Boolean ``torch.Tensor``.
        ValueError: it does not broadcast to ``shape`` or lives on another device.
    """
    if not isinstance(mask, torch.Tensor):
        raise TypeError(
            f"mask must be a Boolean torch.Tensor (True = specified), found {type(mask).__name__}; "
            "convert it with torch.as_tensor(mask)"
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must have dtype torch.bool (True = specified), found {mask.dtype}; "
            "write the condition out, as in mask != 0"
        )
    if mask.layout != torch.strided:
        raise TypeError(f"mask must be a strided tensor, found layout {mask.layout}; use mask.to_dense()")
    if mask.device != device:
        raise ValueError(
            f"mask must be on the device of the data, {device}, found {mask.device}; use mask.to({str(device)!r})"
        )
    if mask.shape == shape:
        return mask
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"mask must broadcast to the shape of the data, {tuple(shape)}, found shape {tuple(mask.shape)}; "
            "insert dimensions with mask[:, None] or mask.unsqueeze(dim)"
        ) from None
