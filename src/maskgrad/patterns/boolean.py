"""The pattern stored as one Boolean per entry."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdRef

from maskgrad.kernels.selection import is_transformed
from maskgrad.kernels.smallest import smallest
from maskgrad.patterns.pattern import Pattern, PatternFacts

__all__ = ["BooleanPattern", "Home", "check_mask", "is_expanded", "own_home", "same_memory", "sharers"]


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory: one is the other, a view of it, or of the same as it."""
    return one is other or torch._C._is_alias_of(one, other)  # type: ignore[attr-defined]


def is_expanded(mask: Tensor) -> bool:
    """Whether several entries share one Boolean."""
    return any(stride == 0 and size > 1 for stride, size in zip(mask.stride(), mask.shape, strict=True))


def sharers(mask: Tensor, entries: int) -> int:
    """How many of ``entries`` share each Boolean of a mask that is expanded to them."""
    return entries // max(smallest(mask).numel(), 1)


class Home:
    """The memory of the masks of a MaskedTensor and its views, which see what is written there.

    Attributes:
        lent: others read the same memory, and must not see what is written: the masks move before they are written.
        shared: a view or another name is at home here, too.
        sharers: how many entries share each Boolean, which a view of some of them does not tell.
        apart: a mask that had to be copied while the values were not: it cannot be written so that all see it.
        moves: how often the masks have moved.
        memory: to where, as one dimension.
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
        """Copy the memory of which ``mask`` is a part; the cost is that of the whole, once until it is lent again."""
        whole = torch.empty(0, dtype=torch.bool, device=mask.device).set_(mask.untyped_storage())
        self.memory = whole.clone()
        self.moves += 1
        self.lent = False


def own_home(mask: Tensor, shape: torch.Size) -> Home | None:
    """The home of a mask that the user passes for data of ``shape``, and shares with the MaskedTensor.

    Of a second one, and of a mask that was read from a MaskedTensor, nobody is at home.
    """
    if torch.compiler.is_compiling():
        return None
    number = sharers(mask, shape.numel())
    base = mask._base if mask._is_view() else mask
    key = id(base)
    entry = _HOMES.get(key)
    if entry is not None and entry[0]() is base:
        known = entry[1]
        if not known.moves:  # another MaskedTensor has it: neither must see what the other writes
            known.lent = True
            return Home(lent=True, sharers=number)
    found = Home(lent=False, sharers=number)
    _HOMES[key] = WeakIdRef(base, functools.partial(_forget, key)), found
    return found


#: The homes of masks that users pass, for as long as these live, by their numbers: half the time of a
#: WeakTensorKeyDictionary, which makes a reference for each question.
_HOMES: dict[int, tuple[WeakIdRef, Home]] = {}


def _forget(key: int, gone: WeakIdRef) -> None:
    entry = _HOMES.get(key)
    if entry is not None and entry[0] is gone:
        del _HOMES[key]


#: Views of views that are remembered; then it is found out where the mask is at home.
DEEPEST = 16


class BooleanPattern(Pattern):
    """A Boolean tensor of the full shape, True where the entry is specified.

    The mask may be an expanded view: broadcasting a mask to its data copies nothing. Most masks are never written, so
    that where a mask is at home is found out by the first write; a view remembers of which pattern it is one.
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
        """The pattern of a view of the values; ``mask`` is, most often, the same view of this mask."""
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
        """The mask, which the reader may keep; see :meth:`keep`."""
        self.keep()
        return self.current

    def keep(self) -> None:
        """Let later writes copy the mask first: the graph may have saved it for the backward pass.

        A graph of ``torch.compile`` saves what it needs. Under a transform of ``torch.func`` a mask that views see
        cannot move; there PyTorch raises in the backward pass.
        """
        if torch.compiler.is_compiling() or (self._home is not None and self._home.lent):
            return
        if not (is_transformed() and self.is_seen):
            self.lend()

    @property
    def current(self) -> Tensor:
        """The mask as it is now; a later write may change it."""
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
        """The pattern of another name of the same memory, or of a view of it, in a graph."""
        home = self.shared_home()
        home.shared = True
        return BooleanPattern(mask, home)

    @property
    def is_seen(self) -> bool:
        """Whether a view or another name of the same memory may see what is written."""
        home = self.home
        return self._is_viewed or (home is not None and home.shared)

    @property
    def home(self) -> Home | None:
        """Where the mask can be written; None: nobody else sees what is written, so that it is replaced."""
        return self.shared_home() if self._source is not None or self._is_viewed else self._home

    def shared_home(self) -> Home:
        """The home for this mask and a view of it. Who else reads a mask that had none so far is not known."""
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
        """The mask, for a reader who must not see later writes; they copy it first."""
        home = self._known_home()
        if home is not None:
            home.lent = True
        return self.current

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

    def facts(self) -> PatternFacts:
        """Nothing but the layout: the mask has its own shape."""
        return PatternFacts("strided")

    def rebuilt(self, tensors: tuple[Any, ...]) -> BooleanPattern:
        """Around another mask."""
        return BooleanPattern(tensors[0])

    def __repr__(self) -> str:
        return f"BooleanPattern({self.current})"


def check_mask(mask: object, shape: torch.Size, device: torch.device) -> Tensor:
    """Return ``mask`` broadcast to ``shape``, or say what is wrong with it.

    Every mask that is an argument passes here. One with fewer dimensions is refused, because ``(B,)`` for ``(B, B)``
    would broadcast to columns where rows are meant; unless it ends in a dimension of size 1 or has none.

    Raises:
        TypeError: ``mask`` is not a Boolean ``torch.Tensor``.
        ValueError: it has fewer dimensions, does not broadcast to ``shape``, or lives on another device.
    """
    if not isinstance(mask, torch.Tensor):
        remedy = (
            "write mask.filled(False)" if hasattr(mask, "filled") else "convert it with torch.as_tensor(mask)"
        )
        raise TypeError(
            f"mask must be a Boolean torch.Tensor (True = specified), found {type(mask).__name__}; {remedy}"
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
    if mask.ndim < len(shape) and mask.ndim and mask.shape[-1] != 1:
        raise _does_not_fit(mask.shape, shape)
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise _does_not_fit(mask.shape, shape) from None


def _does_not_fit(sizes: torch.Size, shape: torch.Size) -> ValueError:
    ways = _spellings(sizes, shape)
    return ValueError(
        f"mask must have as many dimensions as the data, each of its size or 1 where the mask repeats; found a mask "
        f"of shape {tuple(sizes)} for data of shape {tuple(shape)}"
        + (f"; write {' or '.join(ways)}" if ways else "")
    )


def _spellings(sizes: torch.Size, shape: torch.Size) -> list[str]:
    """How a mask can be written to fit ``shape``: with None for the dimensions along which it repeats."""
    found: dict[tuple[int, ...], str] = {}
    for kept in itertools.combinations(reversed(range(len(shape))), len(sizes)):
        here = dict(zip(reversed(kept), sizes, strict=True))
        wide = tuple(here.get(dim, 1) for dim in range(len(shape)))
        if all(size in (1, wanted) for size, wanted in zip(wide, shape, strict=True)):
            index = [":" if dim in here else "None" for dim in range(len(shape))]
            while index[-1] == ":":
                index.pop()
            found.setdefault(wide, f"mask[{', '.join(index)}]")
    return list(found.values())
