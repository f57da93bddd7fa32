"""What each tensor of a batch is, and which of its entries are padding: by values and use, names last.

A mask is proven by data that are alike under it, at an end of each row; there it is seen which value means padding.
Data without evidence take a mask that was proven by other data, or one with a name of padding. What may be padding, but
is not certain, is a candidate: it is never rewritten, and the report names the option with which it would be.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.operations import expanded
from maskgrad.doctor.packed import is_structure
from maskgrad.doctor.padding import Laid, Padding, alike, as_mask, ends_in_runs, is_one_piece, layouts, marked

__all__ = ["LENGTHS", "PADS", "PAIRS", "Roles", "is_selection"]

#: names of masks that select tokens, for the loss for instance: other operations may read the rest
_SELECTS = re.compile(r"loss|completion|assistant|response|prompt|special|trainable|weight", re.I)
_SELECTS_OF = re.compile(r"(label|target|action)s?_mask", re.I)
LENGTHS = re.compile(r"length|lens|len$|seq_?len|num_tokens", re.I)
#: names of masks and lengths of padding
PADS = re.compile(rf"pad|mask|valid|real|keep|observed|missing|{LENGTHS.pattern}", re.I)
#: names under which True usually means padding
TRUE_IS_PADDING = re.compile(r"pad(ding|ded)?_?mask|is_?pad|padded|missing|invalid", re.I)
OBSERVED = re.compile(r"(.*?)(observed|missing)", re.I)
PAIRS = re.compile(r"att|causal|look_ahead", re.I)


def is_selection(name: Key, key: Key) -> bool:
    """Whether a mask selects tokens by its name, and is not that of the data themselves."""
    text, of = str(name), _SELECTS_OF.search(str(name))
    selects = _SELECTS.search(text) or (of is not None and of[1].lower() not in str(key).lower())
    return bool(selects) and not re.search("pad", text, re.I)


class _Option(NamedTuple):
    """A mask or lengths that may be those of data, and how many padded positions are evidence of it."""

    name: Key
    laid: Laid
    evidence: int = 0


class Roles:
    """The roles in one batch, in which samples may come first or second."""

    def __init__(self, batch: Any, *, only_proven: bool = False, documents: Key | None = None) -> None:
        self.batch, self.inside, self._only_proven = batch, fields(batch), only_proven
        dense = {key: held for key, held in self.inside.items() if held.layout is torch.strided}
        tell = {
            key: held for key, held in dense.items()
            if isinstance(held, Tensor) and key != documents and not (is_structure(key) and "mask" not in str(key))
        }  # fmt: skip
        #: tensors with two values, and one-dimensional numbers, which may be counts
        masks = {key: mask for key, held in tell.items() if (mask := as_mask(held))}
        # numbers that are all the same only with a name of masks
        self.masks = {
            key: mask for key, mask in masks.items()
            if tell[key].dtype == torch.bool or PADS.search(str(key)) or 0 < int(mask.core.sum()) < mask.core.numel()
        }  # fmt: skip
        self.lengths = {key: held for key, held in tell.items() if _may_be_lengths(key, held)}
        tells = self.masks.keys() | self.lengths.keys()
        self._data = {key: tensor_of(held) for key, held in dense.items() if key not in tells}
        #: numbers of samples that one-dimensional tensors have
        self._counts = {len(held) for held in tell.values() if held.ndim == 1}
        #: axes of samples and of positions of data of which the padding is known by a mask or lengths
        self.axes: dict[Key, tuple[int, tuple[int, ...]]] = {}
        #: masks and lengths with which data agree
        self.proven: dict[Key, _Option] = {}
        self._found: dict[Key, Padding] = {}
        self._turned_masks: set[Key] = set()
        for key, tensor in self._data.items():
            if (own := marked(key, self.inside[key])) is not None:
                self._found[key] = own
            elif (best := self._take(key, tensor, self._proofs(key, tensor))) is not None:
                self.proven.setdefault(best.name, best)
        for key in [] if only_proven else [key for key in self._data if key not in self._found]:
            self._take(key, self._data[key], self._of_others(key, self._data[key]))
        self.paddings = [self._found[key] for key in self.inside if key in self._found]
        second = [self._data[key].shape[:2] for key, (samples, _) in self.axes.items() if samples == 1]
        shapes = {shape for shape in second if shape[0] != shape[1]}
        of_shape = {key for key, held in dense.items() if held.shape[:2] in shapes}
        #: keys of tensors in which the positions come before the samples
        self.turned = of_shape | self._turned_masks

    def _take(self, key: Key, tensor: Tensor, options: Iterable[_Option]) -> _Option | None:
        """The best of several masks and lengths, which is the padding of data from here on."""

        def rank(option: _Option) -> tuple[bool, int, int]:
            pairs = zip(str(option.name), str(key), strict=False)
            common = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            return bool(PADS.search(str(option.name))), option.evidence, len(list(common))

        best = max(options, key=rank, default=None)
        is_weight = best is not None and "weight" in str(key).lower()
        if best is None or (is_weight and not bool(tensor[~expanded(best.laid.real, tensor.shape)].any())):
            return None  # a weight that is zero in the padding is a mask
        self.axes[key] = best.laid.samples, best.laid.positions
        mask_values: dict[Key, float | None] = {}
        for name in dict.fromkeys((best.name, *self.masks, *self.lengths)):
            for laid in [best.laid] if name == best.name else self._laid(name, tensor):
                if torch.equal(laid.in_order(), best.laid.in_order()):
                    mask_values[name] = None if laid.side is None else self.masks[name].values[not laid.side]
                    self._turned_masks |= {name} if laid.turned else set()
                    break
        kind = "the lengths" if best.name in self.lengths else "the mask"
        if not bool(best.laid.real.all()):
            source = f"{kind} {best.name!r}"
            self._found[key] = Padding(key, best.laid.real, source, mask_values, best.laid.samples)
        return best

    def _proofs(self, key: Key, tensor: Tensor) -> Iterator[_Option]:
        """The masks and lengths with which data agree, each laid where they agree best."""
        for name in self._names(key):
            found = list(self._laid(name, tensor))
            core = self.masks[name].core if name in self.masks and PADS.search(str(name)) else None
            numbers = tensor.is_floating_point() and tensor.ndim < 4
            if core is not None and core.shape == tensor.shape and numbers:
                found += [Laid(core == side, 0, (), side) for side in (True, False)]
            options = [_Option(name, laid, alike(tensor, laid)) for laid in found]
            best = max(options, key=lambda each: (each.evidence, self._fits(tensor, each.laid)), default=None)
            if best is not None and best.evidence:
                yield best

    def _fits(self, tensor: Tensor, laid: Laid) -> tuple[bool, ...]:
        """Whether the axes have as many samples as others have, and positions as no other has samples."""
        samples, positions = tensor.shape[laid.samples], {tensor.shape[axis] for axis in laid.positions}
        return samples in self._counts, positions.isdisjoint(self._counts), not laid.turned, laid.samples == 0

    def _of_others(self, key: Key, tensor: Tensor) -> list[_Option]:
        """Masks that other data have proven, or else those with a name of padding."""
        names = self._names(key)
        options = [option for name in names if (option := self._like_others(name, tensor))]
        options = options or [option for name in names if (option := self._by_name(name, key, tensor))]
        runs = None if tensor.is_floating_point() else ends_in_runs(tensor)
        if runs is None:
            return options
        # real ids may be the same as those of the padding that they end in
        masks = [(option, option.laid.in_order()) for option in options]
        return [option for option, real in masks if real.shape != runs.shape or bool((runs <= real).all())]

    def _like_others(self, name: Key, tensor: Tensor) -> _Option | None:
        known = self.proven[name].laid if name in self.proven else None
        if known is None or not known.positions:
            return None
        for laid in self._laid(name, tensor):
            ends = torch.equal(laid.in_order(), known.in_order()) or (laid.side is None and laid.is_whole)
            if laid.side == known.side and ends:
                return _Option(name, laid)
        return None

    def _by_name(self, name: Key, key: Key, tensor: Tensor) -> _Option | None:
        text, is_place = str(name), isinstance(name, int)  # in a tuple nothing has a name
        of_numbers = name in self.proven and not self.proven[name].laid.positions
        if of_numbers or not (is_place or PADS.search(text)):
            return None
        found = [laid for laid in self._laid(name, tensor) if laid.has_both]
        if name in self.lengths:
            named = bool(LENGTHS.search(text))
            sizes = {size for other in self._data.values() for size in other.shape[1:]}
            anywhere = named and int(self.lengths[name].max()) not in sizes
            found = [each for each in found if each.is_whole or anywhere]
            return _Option(name, found[0]) if found and (named or found[0].leaves_something) else None
        of_values = OBSERVED.match(text)
        if of_values and (tensor.shape != self.inside[name].shape or not str(key).startswith(of_values[1])):
            return None  # a mask of observations is that of values, not of other tensors such as a calendar
        if self.masks[name].core.ndim > 2 and not of_values and (PAIRS.search(text) or tensor.ndim < 4):
            return None  # who may look at whom, and not which pixels are real
        if not found or (is_place and self.inside[name].dtype != torch.bool):
            return None
        axes, inverted = (found[0].samples, found[0].positions), bool(TRUE_IS_PADDING.search(text))
        sides = [each for each in found if (each.samples, each.positions) == axes]
        return _Option(name, max(sides, key=lambda each: (each.leaves_something, each.side is not inverted)))

    def _names(self, key: Key) -> list[Key]:
        return [name for name in (*self.masks, *self.lengths) if not is_selection(name, key)]

    def _laid(self, name: Key, tensor: Tensor) -> Iterable[Laid]:
        return layouts(self.masks.get(name) or self.lengths[name], tensor)

    def candidates(self, padded: Collection[Key]) -> dict[Key, str]:
        """What may be padded and is not known to be: for each key the value of ``padding=`` that would name it."""
        known = {name for padding in self.paddings for name in padding.mask_values}
        found: dict[Key, str] = {}
        for key, tensor in self._data.items():
            own = self._found.get(key)
            if key in padded or tensor.ndim < 2 or (own is not None and not own.mask_values):
                continue
            if own is not None:
                name, value = next(iter(own.mask_values.items()))
                found[key] = repr(f"~{name}" if value else name)
            elif not re.search("weight", str(key), re.I) and not is_structure(key):
                # if the caller has named theirs, none of the batch is meant
                names = [] if self._only_proven else [name for name in self._names(key) if name not in known]
                laid = [option for name in names if (option := self._may_pad(name, tensor))]
                runs = None if laid else ends_in_runs(tensor)
                if laid:
                    found[key] = repr(f"~{laid[0].name}" if laid[0].laid.side is False else laid[0].name)
                elif runs is not None:
                    ids = tensor.ndim == 2 and not tensor.is_floating_point()
                    found[key] = str(int(tensor[~runs].flatten()[0])) if ids else "mask"
        return found

    def _may_pad(self, name: Key, tensor: Tensor) -> _Option | None:
        """A mask with a sample that has no padding, or lengths, that may be of the data."""
        for laid in self._laid(name, tensor):
            one_piece = laid.leaves_something if laid.side is None else is_one_piece(laid.in_order())
            if laid.has_both and laid.is_whole and one_piece:
                return _Option(name, laid)
        return None


def _may_be_lengths(key: Key, held: Tensor) -> bool:
    """Whether one-dimensional numbers may be counts: integers, or shares of the longest with a name of lengths."""
    if held.ndim != 1 or not held.numel() or held.dtype == torch.bool or held.is_complex():
        return False
    if held.is_floating_point():
        return bool(LENGTHS.search(str(key))) and float(held.max()) == 1.0 and bool((held > 0).all())
    return bool((held >= 0).all()) and int(held.max()) > 0
