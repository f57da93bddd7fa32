"""What each tensor of a batch is, and which of its entries are padding: by values and use, names last.

A mask is proven by data that are alike under it, at an end of each row; there it is seen which value means padding.
Data without evidence take a mask that was proven by other data, or one with a name of padding. What may be padding, but
is not certain, is a candidate: it is never rewritten, and the report names the option with which it would be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.evidence import (
    Laid,
    agreement,
    ends_in_runs,
    is_one_piece,
    laid_lengths,
    laid_mask,
    scattered,
)
from maskgrad.doctor.packed import is_structure
from maskgrad.doctor.padding import IGNORED, Padding, with_given
from maskgrad.doctor.signs import (
    LENGTHS,
    OBSERVED,
    OF_VALUES,
    PADS,
    PAIRS,
    TRUE_IS_PADDING,
    as_mask,
    covers,
    has_both,
    is_causal,
    is_plain,
    is_selection,
    is_weight_of,
    leaves_something,
    likeness,
    may_be_lengths,
)
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Roles", "recognised"]


@dataclass(frozen=True)
class _Option:
    """A mask or lengths that may be those of data."""

    name: Key
    laid: Laid
    count: int
    #: lengths, and masks whose real positions are neighbours
    one_piece: bool = True


class Roles:
    """The roles in one batch, in which samples may come first or, if ``time_first`` may be found, second.

    Attributes:
        batch: the batch.
        inside: its tensors by key.
        masks: tensors with two values, which may be masks of any kind.
        lengths: one-dimensional numbers, which may be counts.
        samples, positions: axes of data of which the padding is known by a mask or lengths.
        proven: masks and lengths with which data agree.
        paddings: of tensors of which the padding is known.
        turned: keys of tensors in which the positions come before the samples.
    """

    def __init__(
        self, batch: Any, *, time_first: bool = True, only_proven: bool = False, documents: Key | None = None
    ) -> None:
        self.batch, self._only_proven = batch, only_proven
        self.inside, self._time_first = fields(batch), time_first
        plain = {
            key: held for key, held in self.inside.items()
            if is_plain(held) and key != documents and not (is_structure(key) and "mask" not in str(key))
        }  # fmt: skip
        self.masks = {key: sides for key, held in plain.items() if (sides := as_mask(key, held)) is not None}
        self.lengths = {key: held for key, held in plain.items() if may_be_lengths(key, held)}
        self._data = {
            key: tensor_of(held) for key, held in self.inside.items()
            if key not in self.masks and key not in self.lengths and held.layout is torch.strided
        }  # fmt: skip
        #: numbers of samples that one-dimensional tensors have
        self._counts = {len(held) for held in plain.values() if held.ndim == 1}
        self.samples: dict[Key, int] = {}
        self.positions: dict[Key, tuple[int, ...]] = {}
        self.paddings: list[Padding] = []
        self.proven: dict[Key, _Option] = {}
        #: masks of which each entry is that of a number, in one tensor
        self._of_numbers: set[Key] = set()
        self._turned_masks: set[Key] = set()
        for key, tensor in self._data.items():
            if not self._by_itself(key, self.inside[key]):
                self._by_evidence(key, tensor)
        if not only_proven:
            for key, tensor in self._data.items():
                if key not in self.padded:
                    self._by_others(key, tensor)
        self.paddings.sort(key=lambda padding: list(self.inside).index(padding.key))
        self.turned = self._turned()

    @property
    def padded(self) -> set[Key]:
        """Keys of tensors of which the padding is known."""
        return {padding.key for padding in self.paddings}

    # decisions

    def _by_itself(self, key: Key, held: Tensor | MaskedTensor) -> bool:
        """Padding that the tensor itself marks."""
        found: Padding | None = None
        if isinstance(held, MaskedTensor):
            found = Padding(key, held.mask.clone(), "the pattern of the MaskedTensor")
        elif held.is_floating_point() and bool(held.isnan().any()):
            found = Padding(key, ~held.isnan(), "NaN")
        elif held.dtype == torch.int64 and bool((held == IGNORED).any()):
            found = Padding(key, held != IGNORED, f"labels of {IGNORED}")
        elif (
            held.dtype == torch.int64 and held.ndim == 2 and bool((held < 0).any())
        ):  # another label that a loss ignores
            runs = ends_in_runs(held)
            if runs is not None and torch.equal(held < 0, ~runs):
                found = Padding(key, runs, f"labels of {int(held.min())}")
        if found is not None and not bool(found.mask.all()):
            self.paddings.append(found)
        return found is not None

    def _by_evidence(self, key: Key, tensor: Tensor) -> None:
        options = [best for name in (*self.masks, *self.lengths) if (best := self._proof(name, key, tensor))]
        if not options or tensor.ndim < 2:
            return
        best = max(
            options,
            key=lambda option: (
                bool(PADS.search(str(option.name))),
                option.count,
                likeness(option.name, key),
            ),
        )
        if is_weight_of(tensor, key, best.laid.real):
            return
        if best.one_piece:
            self.proven.setdefault(best.name, best)
        else:
            self._of_numbers.add(best.name)
        self._add(key, tensor, best)

    def _proof(self, name: Key, key: Key, tensor: Tensor) -> _Option | None:
        """The way in which a mask or lengths agree best with data."""
        if is_selection(name, key):
            return None
        found = [
            _Option(name, laid, count)
            for laid in self._laid(name, tensor)
            if (count := agreement(tensor, laid))
        ]
        if found:
            return max(found, key=lambda option: (option.count, self._fits_samples(tensor, option.laid)))
        mask = self.masks.get(name)
        of_numbers = (
            mask is not None
            and tensor.is_floating_point()
            and tensor.ndim < 4
            and OF_VALUES.search(str(name))
        )
        if mask is not None and of_numbers and mask.core.shape == tensor.shape:
            for side in (True, False):
                if count := scattered(tensor, mask.core == side):
                    return _Option(name, Laid(mask.core == side, 0, (), side), count, one_piece=False)
        return None

    def _by_others(self, key: Key, tensor: Tensor) -> None:
        """A mask that other data have proven, or else one with a name of padding."""
        if tensor.ndim < 2:
            return
        options = [
            option
            for name, known in self.proven.items()
            if (option := self._like_others(name, known, key, tensor))
        ]
        options = options or [
            option for name in (*self.masks, *self.lengths) if (option := self._by_name(name, key, tensor))
        ]
        # of images both axes
        options = [
            option
            for option in options
            if tensor.ndim < 4 or option.laid.positions[0] == 1 or len(option.laid.positions) > 1
        ]
        runs = None if tensor.is_floating_point() else ends_in_runs(tensor)
        if runs is not None:  # real ids may be the same as those of the padding that they end in
            options = [option for option in options if covers(runs, option.laid.in_order())]
        if options:
            best = max(options, key=lambda option: (likeness(option.name, key), option.count))
            if not is_weight_of(tensor, key, best.laid.real):
                self._add(key, tensor, best)

    def _like_others(self, name: Key, known: _Option, key: Key, tensor: Tensor) -> _Option | None:
        if is_selection(name, key):
            return None
        for laid in self._laid(name, tensor):
            same_end = torch.equal(laid.in_order(), known.laid.in_order())
            if laid.side == known.laid.side and (
                same_end or (laid.side is None and tensor.ndim > 1 and self._is_whole(laid))
            ):
                return _Option(name, laid, 1)
        return None

    def _by_name(self, name: Key, key: Key, tensor: Tensor) -> _Option | None:
        is_place = isinstance(name, int)  # in a tuple nothing has a name
        if is_selection(name, key) or name in self._of_numbers or not (is_place or PADS.search(str(name))):
            return None
        layouts = [
            laid for laid in self._laid(name, tensor) if self._is_usual(laid, tensor) and has_both(laid.real)
        ]
        if name in self.lengths:
            whole = [laid for laid in layouts if self._is_whole(laid)]
            named = bool(LENGTHS.search(str(name)))
            chosen = whole[:1] or (layouts[:1] if named and not self._fits_elsewhere(name) else [])
            chosen = chosen if named or bool((self.lengths[name] > 0).all()) else []
            return _Option(name, chosen[0], 0) if chosen else None
        of_values = OBSERVED.match(str(name))
        if of_values and (tensor.shape != self.inside[name].shape or not str(key).startswith(of_values[1])):
            return None  # a mask of observations is that of values, not of other tensors such as a calendar
        if self.masks[name].core.ndim > 2 and not of_values and (PAIRS.search(str(name)) or tensor.ndim < 4):
            return None  # who may look at whom, and not which pixels are real
        if not layouts or (is_place and self.inside[name].dtype != torch.bool):
            return None
        first = [
            laid
            for laid in layouts
            if (laid.samples, laid.positions) == (layouts[0].samples, layouts[0].positions)
        ]
        first = [laid for laid in first if leaves_something(laid)] or first
        inverted = bool(TRUE_IS_PADDING.search(str(name)))
        return _Option(name, next((laid for laid in first if laid.side is not inverted), first[0]), 0)

    def _is_usual(self, laid: Laid, tensor: Tensor) -> bool:
        """Whether the samples come first; second only if the numbers of samples in the batch require it."""
        if laid.samples == 0 or laid.real.shape[0] != tensor.shape[0]:
            return True
        return tensor.shape[1] in self._counts and tensor.shape[0] not in self._counts

    def _is_whole(self, laid: Laid) -> bool:
        """Whether one sample has no padding."""
        return bool(laid.in_order().flatten(1).all(1).any())

    def _fits_elsewhere(self, name: Key) -> bool:
        longest = int(self.lengths[name].max())
        return any(longest in tensor.shape[1:] for tensor in self._data.values() if tensor.ndim > 1)

    # what masks and lengths are

    def _laid(self, name: Key, tensor: Tensor) -> Iterator[Laid]:
        if tensor.ndim < 2:
            return
        if name in self.lengths:
            yield from laid_lengths(self.lengths[name], tensor, time_first=self._time_first)
            return
        core = self.masks[name].core.to(tensor.device)
        if not is_causal(core):
            yield from laid_mask(core, tensor, time_first=self._time_first)

    def _fits_samples(self, tensor: Tensor, laid: Laid) -> tuple[bool, bool, bool]:
        positions = [tensor.shape[axis] for axis in laid.positions]
        return (
            tensor.shape[laid.samples] in self._counts,
            not any(size in self._counts for size in positions),
            laid.samples == 0,
        )

    def _add(self, key: Key, tensor: Tensor, option: _Option) -> None:
        self.samples[key], self.positions[key] = option.laid.samples, option.laid.positions
        mask_values: dict[Key, float | None] = {}
        for name in dict.fromkeys((option.name, *self.masks, *self.lengths)):
            value = self._mask_value(name, tensor, option)
            if value is not False:
                mask_values[name] = value
        kind = "the lengths" if option.name in self.lengths else "the mask"
        if not bool(option.laid.real.all()):
            self.paddings.append(
                Padding(key, option.laid.real, f"{kind} {option.name!r}", mask_values, option.laid.samples)
            )

    def _mask_value(self, name: Key, tensor: Tensor, option: _Option) -> Any:
        """The value of a mask at the padding, if it equals the chosen one; None for lengths, False if it does not."""
        if name == option.name and option.laid.side is None:
            return None
        if name == option.name:
            self._turned_masks |= {name} if option.laid.turned else set()
            return self.masks[name].values[not option.laid.side]
        real = option.laid.in_order()
        for laid in self._laid(name, tensor):
            found = laid.in_order()
            if found.shape == real.shape and torch.equal(found, real):
                self._turned_masks |= {name} if laid.turned else set()
                return None if laid.side is None else self.masks[name].values[not laid.side]
        return False

    def _turned(self) -> set[Key]:
        """What has the shape of data in which positions come first follows them; and masks that have them first."""
        shapes = {
            tuple(tensor.shape[:2]) for key, tensor in self._data.items()
            if self.samples.get(key) == 1 and tensor.shape[0] != tensor.shape[1]
        }  # fmt: skip
        data = {
            key for key, held in self.inside.items() if is_plain(held) and tuple(held.shape[:2]) in shapes
        }
        return data | self._turned_masks

    # candidates and the inventory

    def candidates(self, padded: Collection[Key], excluded: Collection[Key] = ()) -> dict[Key, str]:
        """What may be padded and is not known to be: for each key the value of ``padding=`` that would name it."""
        known = {name for padding in self.paddings for name in padding.mask_values}
        found: dict[Key, str] = {}
        for key, tensor in self._data.items():
            own = next((padding for padding in self.paddings if padding.key == key), None)
            if (
                key in padded
                or key in excluded
                or tensor.ndim < 2
                or (own is not None and not own.mask_values)
            ):
                continue
            if own is not None:
                name = next(iter(own.mask_values))
                found[key] = repr(f"~{name}" if own.mask_values[name] else name)
                continue
            if re.search("weight", str(key), re.I) or is_structure(key):
                continue
            for name in (*self.masks, *self.lengths):
                named = self._only_proven or name in known  # the caller has named theirs
                if not named and key not in found and not is_selection(name, key):
                    inverted = self._may_pad(name, tensor)
                    if inverted is not None:
                        found[key] = repr(f"~{name}" if inverted else name)
            runs = ends_in_runs(tensor) if key not in found else None
            if runs is not None:
                value = tensor[~runs].flatten()[0]
                found[key] = "mask" if tensor.is_floating_point() or tensor.ndim > 2 else str(int(value))
        return found

    def _may_pad(self, name: Key, tensor: Tensor) -> bool | None:
        """Whether True would mean padding, if a mask with a sample that has none, or lengths, may be of the data."""
        if name in self.lengths:
            held = self.lengths[name]
            if held.is_floating_point() or not bool((held > 0).all()) or bool((held == held[0]).all()):
                return None
            fits = (laid for laid in self._laid(name, tensor) if self._is_whole(laid))
            return None if next(fits, None) is None else False
        for laid in self._laid(name, tensor):
            real = laid.in_order()
            if not bool(real.all()) and bool(real.any()) and is_one_piece(real) and self._is_whole(laid):
                return not laid.side
        return None


def recognised(batch: Any, given: Mapping[Key, Any] | None = None) -> list[Padding]:
    """The padding of each tensor of a batch, as it is given or recognised."""
    return with_given(Roles(batch, only_proven=given is not None).paddings, batch, given)
