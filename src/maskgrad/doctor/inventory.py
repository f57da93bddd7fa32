"""The inventory: what a batch holds, the role and the axes of each part, and whether it was examined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.inferred import ObservedUse, ignored_labels
from maskgrad.doctor.packed import LABELS, Documents, is_structure
from maskgrad.doctor.padding import Padding, with_given
from maskgrad.doctor.roles import LENGTHS, PADS, PAIRS, Roles, is_selection

if TYPE_CHECKING:
    from maskgrad.doctor.report import Report

__all__ = ["Part", "Skipped", "Stock", "inventory_of", "table_of"]


@dataclass(frozen=True)
class Part:
    """One tensor, array or list that a step reads.

    Attributes:
        name: its path in the batch, or ``ids of <path of the module>`` for what a module is given.
        shape: its shape; a list has its length.
        dtype: its dtype, without ``torch.``.
        role: data, ids, labels, padding mask, selection mask, attention mask, lengths, positions, documents or
            unknown.
        recognised: how its role and padding were recognised; empty if they were not.
        samples: its axis of samples, None if there is none.
        positions: its axis of positions, None if there is none.
        examined: the experiments that changed it.
        option: the option with which it would be examined, if it may have padding and was not examined; else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    recognised: str = ""
    samples: int | None = None
    positions: int | None = None
    examined: tuple[str, ...] = ()
    option: str = ""

    @classmethod
    def of(cls, name: Key, held: Any, role: str, *rest: Any, **named: Any) -> Part:
        """The part that a tensor is."""
        dtype = str(tensor_of(held).dtype).removeprefix("torch.")
        return cls(str(name), tuple(held.shape), dtype, role, *rest, **named)


@dataclass(frozen=True)
class Skipped:
    """An experiment that was requested, or that the batch needs, and was not made.

    Attributes:
        experiment: its name.
        why: the reason.
        option: what to add, such as an argument; empty if nothing helps.
    """

    experiment: str
    why: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.experiment}: {self.why}" + (f"; add {self.option}" if self.option else "")


def table_of(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """The rows of the inventory as text, the head first."""
    rows: list[tuple[str, ...]] = [
        ("name", "shape", "role", "recognised by", "samples", "positions", "examined by")
    ]
    for part in parts:
        axes = ("" if axis is None else str(axis) for axis in (part.samples, part.positions))
        examined = ", ".join(part.examined) or (f"nothing; add {part.option}" if part.option else "")
        shape = f"{part.dtype} {'×'.join(map(str, part.shape)) or 'scalar'}"
        rows.append((part.name, shape, part.role, part.recognised, *axes, examined))
    return rows


def inventory_of(
    roles: Roles,
    paddings: Sequence[Padding],
    use: ObservedUse | None = None,
    documents: Documents | None = None,
    examined: Mapping[Key, Sequence[str]] | None = None,
) -> list[Part]:
    """What is known of a batch, with the experiments that changed each part, and what may be padded in it."""
    known, found = {padding.key: padding for padding in paddings}, []
    candidates = roles.candidates(known.keys() | (set() if use is None else use.read_of(roles.batch)))
    for key, held in roles.inside.items():
        role, how = _role_of(roles, key)
        if documents is not None and key == documents.key:
            role, how = "documents", documents.source
        elif key in known and role not in ("labels", "positions", "documents"):
            role = "data" if tensor_of(held).is_floating_point() else "ids"
        how = known[key].source if key in known else how
        option = f"padding={{{key!r}: {candidates[key]}}}" if key in candidates else ""
        tried = tuple((examined or {}).get(key, ()))
        found.append(Part.of(key, held, role, how, *_axes_of(roles, key), examined=tried, option=option))
    for name, read in () if use is None else use.unknown(roles.batch).items():
        how = f"padding_idx={read.padding_idx} of its table; it is no part of the batch"
        option = f"these ids to the batch, or padding_idx={read.padding_idx} to their key"
        found.append(Part.of(name, read.ids, "ids", how, 0, 1, option=option))
    return found


def _role_of(roles: Roles, key: Key) -> tuple[str, str]:
    tensor, name = tensor_of(roles.inside[key]), str(key)
    of = next((padding.key for padding in roles.paddings if key in padding.mask_values), None)
    if key in roles.masks:
        core = roles.masks[key].core
        if of is not None:
            alike = key in roles.proven
            return "padding mask", f"what it covers in {of!r} is alike" if alike else f"the padding of {of!r}"
        if core.shape[-1] == core.shape[-2] or (PAIRS.search(name) and core.ndim > 2):
            return "attention mask", "its shape"
        if PADS.search(name) and not is_selection(key, "") and (bool(core.all()) or not bool(core.any())):
            return "padding mask", "its name; it covers nothing"
        return "selection mask", "two values"
    if key in roles.lengths and (of is not None or LENGTHS.search(name)):
        return "lengths", f"the ends of {of!r}" if of is not None else "its name"
    source = next((padding.source for padding in roles.paddings if padding.key == key), "")
    if is_structure(key) and "mask" not in name:
        return ("positions" if "pos" in name else "documents"), source or "its name"
    if LABELS.search(name) or source.startswith("labels"):
        return "labels", source or "its name"
    numbers = tensor.is_floating_point() or tensor.is_complex()
    if tensor.ndim < 2:
        return ("data" if numbers else "labels"), source or "its shape"
    return ("data" if numbers else "ids"), source


def _axes_of(roles: Roles, key: Key) -> tuple[int | None, int | None]:
    shape = tensor_of(roles.inside[key]).shape
    if key in roles.positions:
        return roles.samples[key], next(iter(roles.positions[key]), None)
    if not shape:
        return None, None
    lengths = {tensor_of(roles.inside[k]).shape[p] for k, ps in roles.positions.items() for p in ps}
    along = [axis for axis, size in enumerate(shape) if axis and size in lengths]
    return 0, along[0] if along else 1 if len(shape) > 1 and key not in roles.masks else None


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
