"""The inventory of a program that is watched: it grows with each batch, and with what tables and losses read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.inferred import ignored_labels
from maskgrad.doctor.inventory import Part, inventory_of
from maskgrad.doctor.padding import Padding, with_given
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
            self.take(inventory_of(roles, paddings))
        return paddings

    def take(self, parts: Iterable[Part]) -> None:
        """Take up the parts of a batch that are new."""
        known = {part.name for part in self._report.inventory}
        self._report.inventory += [part for part in parts if part.name not in known]

    def _change(self, changes: Callable[[Part], dict[str, Any]]) -> None:
        self._report.inventory = [replace(part, **changes(part)) for part in self._report.inventory]

    def rewritten(self, paddings: Iterable[Padding], changed: Sequence[Key]) -> None:
        """The padding of these parts is known, and has other contents from here on."""
        rest = {"examined": ("padding-leak",), "option": ""}
        sources = {str(padding.key): padding.source for padding in paddings if padding.key in changed}
        found = {name: {"recognised": source, **rest} for name, source in sources.items()}
        self._change(lambda part: found.get(part.name, {}))

    def examined(self, made: Mapping[str, tuple[str, ...]]) -> None:
        """Write down which experiments have changed which parts."""
        both = {name: dict.fromkeys(tried) for name, tried in made.items()}
        self._change(lambda part: {"examined": (*(dict.fromkeys(part.examined) | both.get(part.name, {})),)})

    def ignored(self, loss: Tensor, seen: Mapping[Key, Any]) -> None:
        """Labels of which the loss ignores the padding need no option."""
        open_parts = {part.name for part in self._report.inventory if part.option}
        tensors = {str(key): held for key, held in seen.items() if isinstance(held, Tensor)}
        reads = ignored_labels(loss) if open_parts else []
        found = {
            name: {"role": "labels", "recognised": read.source, "option": ""}
            for name in open_parts & tensors.keys()
            for read in reversed(reads)
            if read.of(tensors[name])
        }
        self._change(lambda part: found.get(part.name, {}))
