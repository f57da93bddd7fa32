"""The pattern stored as one Boolean per entry."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maskgrad.kernels.smallest import smallest
from maskgrad.mode import TRACED, mode
from maskgrad.patterns.pattern import Pattern, PatternFacts

__all__ = ["BooleanPattern", "MaskStorage", "is_expanded", "own_storage", "same_memory", "sharers"]


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share memory: they are identical, or views of the same tensor."""
    return one is other or torch._C._is_alias_of(one, other)  # type: ignore[attr-defined]


def is_expanded(mask: Tensor) -> bool:
    """Return whether several entries share one Boolean."""
    return any(stride == 0 and size > 1 for stride, size in zip(mask.stride(), mask.shape, strict=True))


def sharers(mask: Tensor) -> int:
    """Number of entries that share each Boolean of an expanded mask."""
    return mask.numel() // max(smallest(mask).numel(), 1)


class MaskStorage:
    """The memory of a mask, which a MaskedTensor and its views share: these see writes to it.

    Attributes:
        whole: the mask that it was made for.
        copy_before_write: others read the same memory, and must not see writes.
        viewed: a view or an alias shares it.
        separate: a mask that was copied although the values were not: writes to it cannot be visible to all.
        memory: the last copy, as one dimension.
    """

    __slots__ = ("__weakref__", "copy_before_write", "memory", "separate", "viewed", "whole")

    def __init__(self, whole: Tensor, copy_before_write: bool = True, separate: bool = False) -> None:
        self.whole = whole
        self.copy_before_write = copy_before_write
        self.separate = separate
        self.viewed = False
        self.memory: Tensor | None = None

    def move(self, mask: Tensor) -> None:
        """Copy the memory of which ``mask`` is a part; views find it when they are read next."""
        whole = torch.empty(0, dtype=torch.bool, device=mask.device).set_(mask.untyped_storage())
        self.memory = whole.clone()
        self.copy_before_write = False


#: The memory of user masks, while these exist. Weak, because it holds the mask, its key.
_OWNED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def own_storage(mask: Tensor, whole: Tensor) -> MaskStorage | None:
    """Return the memory of a user's ``mask``, shared with the MaskedTensor, whose mask is ``whole``.

    A second MaskedTensor with this mask, or with one read from a MaskedTensor, does not share it.
    """
    if mode() in TRACED:
        return None
    base = mask._base if mask._is_view() else mask
    known = _OWNED.get(base)
    first = None if known is None else known()
    if known is not None and (first is None or first.memory is None):
        if first is not None:
            first.copy_before_write = True
        return MaskStorage(whole)
    found = MaskStorage(whole, copy_before_write=False)
    _OWNED[base] = weakref.ref(found)
    return found


class BooleanPattern(Pattern):
    """A Boolean tensor of the full shape, True where the entry is specified.

    The mask may be an expanded view: broadcasting a mask to its data copies nothing. Most masks are neither written nor
    viewed, and have no storage of their own: the first write copies them, as other readers are unknown.
    """

    __slots__ = ("_mask", "_memory", "_storage")

    layout = torch.strided

    def __init__(self, mask: Tensor, storage: MaskStorage | None = None) -> None:
        self._mask = mask
        self._storage = storage
        self._memory = None if storage is None else storage.memory

    def of_view(self, mask: Tensor) -> BooleanPattern:
        """The pattern of a view of the values; ``mask`` is usually the same view of this mask."""
        if same_memory(mask, self._mask):
            return self.alias(mask)
        self.storage.viewed = True
        return BooleanPattern(mask, MaskStorage(mask, separate=True))

    def alias(self, mask: Tensor) -> BooleanPattern:
        """The pattern of an alias or view of the same memory."""
        self.storage.viewed = True
        return BooleanPattern(mask, self.storage)

    @property
    def storage(self) -> MaskStorage:
        """The memory of the mask."""
        if self._storage is None:
            self._storage = MaskStorage(self._mask)
        return self._storage

    @property
    def current(self) -> Tensor:
        """The current mask, which later writes may change."""
        memory = None if self._storage is None else self._storage.memory
        if memory is not None and memory is not self._memory:
            m, self._memory = self._mask, memory
            self._mask = memory.as_strided(m.shape, m.stride(), m.storage_offset())
        return self._mask

    @property
    def mask(self) -> Tensor:
        """The mask, which the caller may keep; see :meth:`keep`."""
        self.keep()
        return self.current

    def keep(self) -> None:
        """Make later writes copy the mask first, as the graph may have saved it for the backward pass.

        Graphs of ``torch.compile`` save copies themselves. Under a transform of ``torch.func`` a mask with views
        cannot move; there PyTorch raises in the backward pass.
        """
        storage = self._storage
        if storage is None or mode() in TRACED or (storage.viewed and mode() == "transform"):
            return
        storage.copy_before_write = True

    def shared_mask(self) -> Tensor:
        """The mask for a reader that must not see later writes; these copy it first."""
        if self._storage is not None:
            self._storage.copy_before_write = True
        return self.current

    def tensors(self) -> tuple[Tensor, ...]:
        """The mask."""
        return (self.shared_mask(),)

    def facts(self) -> PatternFacts:
        """The layout only, as the mask has its own shape."""
        return PatternFacts("strided")

    def __repr__(self) -> str:
        return f"BooleanPattern({self.current})"
