"""The inventory of a program that is watched: it grows with each batch, and with what tables and losses read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.inferred import ignored_labels
from maskgrad.doctor.inventory import Inventory, Part
from maskgrad.doctor.padding import Padding, with_given
from maskgrad.doctor.presented import Presented
from maskgrad.doctor.report import Report
from maskgrad.doctor.roles import Roles

__all__ = ["Stock"]


class Stock:
    """The inventory of a report, while it is made."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def recognised(
        self, batch: Any, padding: Mapping[Key, Any] | None, is_new: Callable[[Tensor], bool]
    ) -> list[Padding]:
        """The padding of those tensors of a batch that are not rewritten yet; the batch is taken up."""
        inside, plain, given = fields(batch), Presented(batch).batch, padding
        if given is not None:
            given = {key: mask for key, mask in given.items() if key in inside}
        roles = Roles(plain, only_proven=given is not None)
        # an array of the program is not followed
        paddings = [
            found for found in with_given(roles.paddings, plain, given)
            if not bool(found.mask.all()) and found.key in inside and is_new(tensor_of(inside[found.key]))
        ]  # fmt: skip
        if given is None or given:
            self.take(Inventory(roles, paddings).parts({}))
        return paddings

    def take(self, parts: Iterable[Part]) -> None:
        """Take up the parts of a batch that are new."""
        known = {part.name for part in self._report.inventory}
        self._report.inventory += [part for part in parts if part.name not in known]

    def rewritten(self, paddings: Iterable[Padding], changed: Sequence[Key]) -> None:
        """The padding of these parts is known, and has other contents from here on."""
        found = {str(padding.key): padding.source for padding in paddings if padding.key in changed}
        self._report.inventory = [
            replace(part, recognised=found[part.name], examined=("padding-leak",), option="")
            if part.name in found else part
            for part in self._report.inventory
        ]  # fmt: skip

    def examined(self, experiments: Mapping[str, tuple[str, ...]]) -> None:
        """Write down which experiments have changed which parts."""
        self._report.inventory = [
            replace(part, examined=tuple(dict.fromkeys((*part.examined, *experiments.get(part.name, ())))))
            for part in self._report.inventory
        ]

    def ignored(self, loss: Tensor, seen: Mapping[Key, Any]) -> None:
        """Labels of which the loss ignores the padding need no option."""
        if not any(part.option for part in self._report.inventory):
            return
        reads, tensors = ignored_labels(loss), {str(key): held for key, held in seen.items()}
        for place, part in enumerate(self._report.inventory):
            held = tensors.get(part.name)
            read = next((read for read in reads if isinstance(held, Tensor) and read.of(held)), None)
            if part.option and read is not None:
                self._report.inventory[place] = replace(
                    part, role="labels", recognised=read.source, option=""
                )
