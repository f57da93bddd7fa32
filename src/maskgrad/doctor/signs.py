"""Names of masks, lengths and labels, and what a tensor may be by its values."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key
from maskgrad.doctor.evidence import Laid, Sides, sides_of

__all__ = [
    "LABELS",
    "LENGTHS",
    "OBSERVED",
    "OF_VALUES",
    "PADS",
    "PAIRS",
    "SELECTS",
    "SELECTS_OF",
    "TRUE_IS_PADDING",
    "as_mask",
    "covers",
    "has_both",
    "is_causal",
    "is_plain",
    "is_selection",
    "is_weight_of",
    "leaves_something",
    "likeness",
    "may_be_lengths",
]

#: names of masks that select tokens, for the loss for instance: other operations may read the rest
SELECTS = re.compile(r"loss|completion|assistant|response|prompt|special|trainable|weight", re.I)
SELECTS_OF = re.compile(r"(label|target|action)s?_mask", re.I)
#: names of masks and lengths of padding
PADS = re.compile(r"pad|mask|valid|real|keep|observed|missing|length|lens|len$|seq_?len|num_tokens", re.I)
#: names under which True usually means padding
TRUE_IS_PADDING = re.compile(r"pad(ding|ded)?_?mask|is_?pad|padded|missing|invalid", re.I)
LENGTHS = re.compile(r"length|lens|len$|seq_?len|num_tokens", re.I)
#: names of masks that may cover single numbers, anywhere
OF_VALUES = re.compile(r"mask|observed|missing|valid", re.I)
OBSERVED = re.compile(r"(.*?)(observed|missing)", re.I)
PAIRS = re.compile(r"att|causal|look_ahead", re.I)
LABELS = re.compile(r"label|target|tags?$|gold|^y$", re.I)


def is_selection(name: Key, key: Key) -> bool:
    """Whether a mask selects tokens by its name, and is not that of the data themselves."""
    text = str(name)
    if re.search("pad", text, re.I):
        return False
    other = SELECTS_OF.search(text)
    return bool(SELECTS.search(text)) or (other is not None and other[1].lower() not in str(key).lower())


def is_plain(held: Any) -> bool:
    """Whether a part of a batch is a dense tensor."""
    return isinstance(held, Tensor) and held.layout is torch.strided


def as_mask(key: Key, held: Tensor) -> Sides | None:
    """The mask that a tensor may be; numbers that are all the same only with a name of masks."""
    sides = sides_of(held)
    constant = (
        sides is not None and held.dtype != torch.bool and bool((sides.core == sides.core.flatten()[0]).all())
    )
    return None if constant and not PADS.search(str(key)) else sides


def may_be_lengths(key: Key, held: Tensor) -> bool:
    """Whether one-dimensional numbers may be counts: integers, or shares of the longest with a name of lengths."""
    if held.ndim != 1 or not held.numel() or held.dtype == torch.bool or held.is_complex():
        return False
    if held.is_floating_point():
        return bool(LENGTHS.search(str(key))) and float(held.max()) == 1.0 and bool((held > 0).all())
    return bool((held >= 0).all()) and int(held.max()) > 0


def has_both(real: Tensor) -> bool:
    """Whether a mask has padding and something else."""
    return bool(real.any()) and not bool(real.all())


def leaves_something(laid: Laid) -> bool:
    """Whether a mask leaves something of each sample."""
    return bool(laid.in_order().flatten(1).any(1).all())


def covers(runs: Tensor, real: Tensor) -> bool:
    """Whether the padding of a mask is inside the runs of one id."""
    return runs.shape != real.shape or not bool((runs & ~real).any())


def is_causal(core: Tensor) -> bool:
    """Whether a mask for pairs of positions is causal, and nothing else."""
    if core.shape[-1] != core.shape[-2]:
        return False
    later = [torch.ones_like(core).triu(start) for start in (0, 1)]
    forms = [form for mask in later for form in (mask, ~mask, mask.mT, ~mask.mT)]
    return any(torch.equal(form, core) for form in forms)


def is_weight_of(tensor: Tensor, key: Key, real: Tensor) -> bool:
    """Whether a tensor is a weight that is zero in the padding: a mask, not data."""
    entries = real.reshape(*real.shape, *(1,) * (tensor.ndim - real.ndim)).expand(tensor.shape)
    return "weight" in str(key).lower() and not bool(tensor[~entries].any())


def likeness(mask: Key, key: Key) -> int:
    """How many letters the names begin with in common: `decoder_attention_mask` is for `decoder_input_ids`."""
    pairs = zip(str(mask), str(key), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
