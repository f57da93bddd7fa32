"""Labels as losses read them: which position each belongs to, and the same step with some of them ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import fields, tensor_of
from maskgrad.doctor.inferred import IdsRead, same_part
from maskgrad.doctor.operations import Operated, key_of
from maskgrad.doctor.packed import Documents

__all__ = ["IgnoredLabels", "labels_ignored"]


class IgnoredLabels:
    """Cross entropies in which some labels are ignored, call by call.

    Args:
        labels: for each call in a step what it reads instead; None: as it is.
    """

    def __init__(self, labels: Sequence[Tensor | None]) -> None:
        self._labels = labels
        self.begin()

    def begin(self) -> None:
        """Another run begins."""
        self._number = 0
        self._given: dict[tuple[Any, ...], Tensor | None] = {}

    def changed(self, call: Operated) -> Operated:
        """The call of a loss, or of its backward pass, with other labels."""
        backward = "backward" in call.facts.name
        place = 2 if backward else 1
        read: Tensor = call.args[place]
        name = (key_of(read), tuple(read.shape), read.storage_offset())
        if not backward:
            self._given[name] = self._labels[self._number] if self._number < len(self._labels) else None
            self._number += 1
        other = self._given.get(name)
        if other is None or other.shape != read.shape:
            return call
        return Operated(
            call.func, call.facts, (*call.args[:place], other, *call.args[place + 1 :]), call.kwargs
        )


def labels_ignored(
    reads: Sequence[IdsRead], batch: Any, tokens: Documents, keep: Callable[[Tensor], Tensor]
) -> IgnoredLabels | None:
    """The losses of a step in which only labels count that belong to positions for which ``keep`` holds.

    A label belongs to the position that predicts it: labels without the first column to those without the last. None
    if no loss reads labels of the batch, or nothing is left that counts.
    """
    labels: list[Tensor | None] = []
    left = False
    for read in reads:
        kept = next(
            (
                kept
                for held in fields(batch).values()
                if (kept := _kept(read, tensor_of(held), tokens, keep)) is not None
            ),
            None,
        )
        labels.append(None if kept is None else torch.where(kept, read.ids, read.padding_idx))
        left |= kept is not None and bool((kept & (read.ids != read.padding_idx)).any())
    return IgnoredLabels(labels) if left else None


def _kept(read: IdsRead, held: Tensor, tokens: Documents, keep: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Which of the labels that were read count, if they are those of a tensor."""
    if held.ndim != 2:
        return None
    columns = torch.arange(held.shape[1], device=held.device).expand(held.shape)
    rows = torch.arange(held.shape[0], device=held.device)[:, None].expand(held.shape)
    found = same_part(read.ids, held, columns, rows)
    if found is None or tokens.ids.ndim != 2 or len(held) != len(tokens.ids):
        return None
    position = found[0] - found[0].min()
    if int(position.max()) >= tokens.ids.shape[1]:
        return None
    return keep(tokens.ids.to(held.device)[found[1], position])
