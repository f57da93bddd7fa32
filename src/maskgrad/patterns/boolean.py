"""The pattern stored as one Boolean per entry."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdRef

from maskgrad.kernels.smallest import smallest
from maskgrad.mode import TRACED, mode
from maskgrad.patterns.pattern import Pattern, PatternFacts

__all__ = ["BooleanPattern", "Home", "is_expanded", "own_home", "same_memory", "sharers"]


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share memory: they are identical, or views of the same tensor."""
    return one is other or torch._C._is_alias_of(one, other)  # type: ignore[attr-defined]


def is_expanded(mask: Tensor) -> bool:
    """Return whether several entries share one Boolean."""
    return any(stride == 0 and size > 1 for stride, size in zip(mask.stride(), mask.shape, strict=True))


def sharers(mask: Tensor, entries: int) -> int:
    """Number of ``entries`` that share each Boolean of an expanded mask."""
    return entries // max(smallest(mask).numel(), 1)


class Home:
    """The memory shared by the masks of a MaskedTensor and its views, which see writes to it.

    Attributes:
        lent: others read the same memory, and must not see writes: the masks move before a write.
        shared: a view or an alias shares it.
        sharers: number of entries that share each Boolean, which a view does not show.
        apart: a mask that was copied although the values were not: writes to it cannot be visible to all.
        moves: number of moves so far.
        memory: the new memory, as one dimension.
    """

    __slots__ = ("__weakref__", "apart", "lent", "memory", "moves", "shared", "sharers")

    def __init__(self, lent: bool, apart: bool = False, sharers: int = 1) -> None:
        self.lent = lent
        self.sharers = sharers
        self.apart = apart
        self.shared = False
        self.moves = 0
        self.memory: Tensor | None = None

    def move(self, mask: Tensor) -> None:
        """Copy the memory of which ``mask`` is a part; costs a full copy, once until it is lent again."""
        whole = torch.empty(0, dtype=torch.bool, device=mask.device).set_(mask.untyped_storage())
        self.memory = whole.clone()
        self.moves += 1
        self.lent = False


def own_home(mask: Tensor, shape: torch.Size) -> Home | None:
    """Return the home of a user's mask for data of ``shape``, shared with the MaskedTensor.

    A second MaskedTensor with this mask, or with one read from a MaskedTensor, does not share it.
    """
    if mode() in TRACED:
        return None
    number = sharers(mask, shape.numel())
    base = mask._base if mask._is_view() else mask
    key = id(base)
    entry = _HOMES.get(key)
    if entry is not None and entry[0]() is base:
        known = entry[1]
        if not known.moves:  # used by another MaskedTensor: neither must see the other's writes
            known.lent = True
            return Home(lent=True, sharers=number)
    found = Home(lent=False, sharers=number)
    _HOMES[key] = WeakIdRef(base, functools.partial(_forget, key)), found
    return found


#: The homes of user masks, while these exist, by id: half the time of a
#: WeakTensorKeyDictionary, which makes a reference for each lookup.
_HOMES: dict[int, tuple[WeakIdRef, Home]] = {}


def _forget(key: int, gone: WeakIdRef) -> None:
    entry = _HOMES.get(key)
    if entry is not None and entry[0] is gone:
        del _HOMES[key]


#: Depth of views of views that is recorded; beyond it the home is looked up.
DEEPEST = 16


class BooleanPattern(Pattern):
    """A Boolean tensor of the full shape, True where the entry is specified.

    The mask may be an expanded view: broadcasting a mask to its data copies nothing. Most masks are never written, so
    the home of a mask is looked up by the first write; a view only records its base pattern.
    """

    __slots__ = ("_depth", "_home", "_is_viewed", "_mask", "_moves", "_source")

    def __init__(
        self,
        mask: Tensor,
        home: Home | None = None,
        source: tuple[BooleanPattern, Tensor] | None = None,
        moves: int = 0,
    ) -> None:
        self._mask = mask
        self._home = home
        self._source = source
        self._is_viewed = False
        self._depth = 0
        self._moves = moves if home is None else home.moves

    def of_view(self, mask: Tensor) -> BooleanPattern:
        """The pattern of a view of the values; ``mask`` is usually the same view of this mask."""
        self._is_viewed = True
        found = BooleanPattern(mask, None, (self, self._mask), self._moves)
        if self._source is not None:
            found._depth = self._depth + 1
            if found._depth > DEEPEST:
                self.shared_home()
                found._depth = 0
        return found

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
        if mode() in TRACED or (self._home is not None and self._home.lent):
            return
        if not (mode() == "transform" and self.is_seen):
            self.lend()

    @property
    def current(self) -> Tensor:
        """The current mask, which later writes may change."""
        home = self._home
        if home is None:
            if self._source is None:
                return self._mask
            home = self._known_home()
            if home is None or home.moves == self._moves:
                return self._mask
            home = self.shared_home()
        if home.moves != self._moves:
            assert home.memory is not None
            m = self._mask
            self._mask = home.memory.as_strided(m.shape, m.stride(), m.storage_offset())
            self._moves = home.moves
        return self._mask

    def alias(self, mask: Tensor) -> BooleanPattern:
        """The pattern of an alias or view of the same memory, in a graph."""
        home = self.shared_home()
        home.shared = True
        return BooleanPattern(mask, home)

    @property
    def is_seen(self) -> bool:
        """Return whether a view or alias of the same memory may see writes."""
        home = self.home
        return self._is_viewed or (home is not None and home.shared)

    @property
    def home(self) -> Home | None:
        """The writable home of the mask; None: no views, so writes replace the mask."""
        return self.shared_home() if self._source is not None or self._is_viewed else self._home

    def shared_home(self) -> Home:
        """The home for this mask and a view of it. Other readers of a mask without a home are unknown."""
        if self._home is None:
            if self._source is None:
                self._home = Home(lent=True, sharers=sharers(self._mask, self._mask.numel()))
            else:
                source, mask = self._source
                if same_memory(self._mask, mask):
                    self._home = source.shared_home()
                    self._home.shared = True
                else:
                    self._home, self._moves = Home(lent=True, apart=True), 0
                self._source = None
        return self._home

    def _known_home(self) -> Home | None:
        return (
            self._source[0]._known_home() if self._home is None and self._source is not None else self._home
        )

    def lend(self) -> Tensor:
        """The mask for a reader that must not see later writes; these copy it first."""
        home = self._known_home()
        if home is not None:
            home.lent = True
        return self.current

    def borrowed(self) -> BooleanPattern:
        """The same entries for other values: neither sees writes to the other."""
        return BooleanPattern(self.lend())

    @property
    def layout(self) -> torch.layout:
        """The storage layout of the values that this pattern describes."""
        return torch.strided

    def tensors(self) -> tuple[Tensor, ...]:
        """The mask."""
        return (self.lend(),)

    def facts(self) -> PatternFacts:
        """The layout only, as the mask has its own shape."""
        return PatternFacts("strided")

    def rebuilt(self, tensors: tuple[Any, ...]) -> BooleanPattern:
        """The pattern with another mask."""
        return BooleanPattern(tensors[0])

    def __repr__(self) -> str:
        return f"BooleanPattern({self.current})"
