"""The pattern stored as one Boolean per entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Facts, Pattern

__all__ = ["BooleanPattern", "Home", "check_mask"]


class Home:
    """The memory of the masks of a MaskedTensor and its views, which see what is written there.

    Attributes:
        lent: others read the same memory, and must not see what is written: the masks move before they are written.
        apart: a mask that had to be copied while the values were not: it cannot be written so that all see it.
        moves: how often the masks have moved.
        memory: to where, as one dimension.
    """

    __slots__ = ("__weakref__", "apart", "lent", "memory", "moves")

    def __init__(self, lent: bool, apart: bool = False) -> None:
        self.lent = lent
        self.apart = apart
        self.moves = 0
        self.memory: Tensor | None = None

    def move(self, mask: Tensor) -> None:
        """Copy the memory of which ``mask`` is a part; the cost is that of the whole, once until it is lent again."""
        whole = torch.empty(0, dtype=torch.bool, device=mask.device).set_(mask.untyped_storage())
        self.memory = whole.clone()
        self.moves += 1
        self.lent = False


class BooleanPattern(Pattern):
    """One Boolean per entry, True where the entry is specified (the polarity of ``torch.masked``).

    The mask may be an expanded view: broadcasting a mask to its data copies nothing.
    """

    __slots__ = ("_home", "_mask", "_moves")

    def __init__(self, mask: Tensor, home: Home | None = None) -> None:
        self._mask = mask
        self._home = home
        self._moves = 0 if home is None else home.moves

    @property
    def mask(self) -> Tensor:
        """As stored."""
        home = self._home
        if home is not None and home.moves != self._moves:
            assert home.memory is not None
            m = self._mask
            self._mask = home.memory.as_strided(m.shape, m.stride(), m.storage_offset())
            self._moves = home.moves
        return self._mask

    @property
    def home(self) -> Home | None:
        """Where the mask can be written; None: nobody else sees what is written, so that it is replaced."""
        return self._home

    def shared_home(self) -> Home:
        """The home for this mask and a view of it. Who else reads a mask that had none so far is not known."""
        if self._home is None:
            self._home = Home(lent=True)
        return self._home

    def lend(self) -> Tensor:
        """The mask, for someone who must not see what is written later."""
        if self._home is not None:
            self._home.lent = True
        return self.mask

    def borrowed(self) -> BooleanPattern:
        """The same entries for other values: neither sees what is written to the other."""
        return BooleanPattern(self.lend())

    @property
    def layout(self) -> torch.layout:
        """The storage layout of the values that this pattern describes."""
        return torch.strided

    def tensors(self) -> tuple[Tensor, ...]:
        """The mask."""
        return (self.lend(),)

    def facts(self) -> Facts:
        """Nothing but the layout: the mask has its own shape."""
        return Facts("strided")

    def rebuilt(self, tensors: tuple[Any, ...]) -> BooleanPattern:
        """Around another mask."""
        return BooleanPattern(tensors[0])

    def __repr__(self) -> str:
        return f"BooleanPattern({self.mask})"


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
