"""Padding that no batch marks, known from what reads it: tables with a padding_idx, masks of modules, and lengths."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from maskgrad.doctor.batches import Key, Padding, fields, tensor_of
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import Operated

__all__ = ["Asking", "inferred", "padded_ids"]

#: arguments of modules that are True where padding is, and such as hold 1 where entries are real
_INVERTED = ("src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "key_padding_mask")
_USUAL = ("attention_mask",)


def padded_ids(ids: Tensor, padding_idx: int) -> Tensor | None:
    """Where ids are real, if the id of padding stands at the ends of rows and nowhere else; None otherwise."""
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
        return None
    real = ids != padding_idx
    if bool(real.all()) or not bool(real.any()):
        return None
    starts = real.diff(dim=1, prepend=torch.zeros_like(real[:, :1]).to(real.dtype)) & real
    return real if bool((starts.sum(1) <= 1).all()) else None


class Asking(Guarded):
    """The first run of a step: ids read by tables that know an id of padding, masks of modules, packed lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[Tensor, int]] = []
        self.masks: list[tuple[Tensor, str]] = []

    def run(self, call: Operated) -> Any:
        """Note what a table reads, and what is packed."""
        if call.facts.name == "embedding" and len(call.args) > 2 and call.args[2] >= 0:
            self.tables.append((call.args[1], call.args[2]))
        if call.facts.name == "_pack_padded_sequence":
            self.masks.append((_packed(*call.args[:3]), "lengths of pack_padded_sequence"))
        return call()

    def called(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        """Note the masks that a module is given."""
        given = sys._getframe(1).f_locals.get("kwargs", {})  # a hook for all modules is not given keywords
        for name in (*_INVERTED, *_USUAL):
            mask = given.get(name)
            if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.is_floating_point():
                mask = mask.bool()
                self.masks.append(
                    (~mask if name in _INVERTED else mask, f"argument {name} of {type(module).__name__}")
                )


def _packed(input: Tensor, lengths: Tensor, batch_first: bool) -> Tensor:
    """Which positions are packed, by sample, in the order in which ``pack_padded_sequence`` was given them."""
    longest = input.shape[1] if batch_first else input.shape[0]
    mask = torch.arange(longest, device=input.device) < lengths.to(input.device)[:, None]
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not pack_padded_sequence.__code__:
        frame = frame.f_back
    order = None if frame is None else frame.f_locals.get("sorted_indices")  # with enforce_sorted=False
    return mask if order is None else torch.empty_like(mask).index_copy_(0, order, mask)


def inferred(asking: Asking, batch: Any, known: Collection[Key]) -> list[Padding]:
    """The padding of tensors of which none is known yet."""
    found = []
    for key, field in fields(batch).items():
        tensor = tensor_of(field)
        if key in known or not isinstance(field, Tensor) or tensor.layout is not torch.strided:
            continue
        padding = _by_table(key, tensor, asking) or _by_mask(key, tensor, asking)
        if padding is not None:
            found.append(padding)
    return found


def _by_table(key: Key, tensor: Tensor, asking: Asking) -> Padding | None:
    for ids, padding_idx in asking.tables:
        alike = (ids.shape, ids.dtype, ids.device) == (tensor.shape, tensor.dtype, tensor.device)
        if alike and torch.equal(ids, tensor):
            real = padded_ids(tensor, padding_idx)
            if real is not None:
                return Padding(key, real, f"padding_idx={padding_idx} of the table that reads it")
    return None


def _by_mask(key: Key, tensor: Tensor, asking: Asking) -> Padding | None:
    """A mask that a module was given, if one value stands wherever it says padding: that of another input does not."""
    if tensor.dtype == torch.bool or tensor.ndim < 2 or "mask" in str(key).lower():
        return None
    for mask, name in asking.masks:
        if mask.device == tensor.device and mask.shape == tensor.shape[:2] and not bool(mask.all()):
            padded = tensor[~mask]
            if bool((padded == padded.flatten()[0]).all()):
                return Padding(key, mask.clone(), f"the {name}")
    return None
