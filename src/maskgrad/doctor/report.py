"""The inventory of a batch; the report: findings, notes, and which experiments were made; as text and as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.inferred import ObservedUse, ignored_labels
from maskgrad.doctor.packed import LABELS, Documents, is_structure
from maskgrad.doctor.padding import Padding, with_given
from maskgrad.doctor.roles import LENGTHS, PADS, PAIRS, Roles, is_selection

__all__ = ["Experiment", "Part", "Report", "Skipped", "ignored_by_loss", "inventory_of", "recognised"]


@dataclass
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


def _table(parts: Sequence[Part]) -> list[str]:
    """The inventory as text, the head first."""
    head = ("name", "shape", "role", "recognised by", "samples", "positions", "examined by")
    rows: list[tuple[str, ...]] = [head]
    for part in parts:
        examined = ", ".join(part.examined) or (f"nothing; add {part.option}" if part.option else "")
        shape = f"{part.dtype} {'×'.join(map(str, part.shape)) or 'scalar'}"
        axes = ("" if axis is None else str(axis) for axis in (part.samples, part.positions))
        rows.append((part.name, shape, part.role, part.recognised, *axes, examined))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (map(str.ljust, row, widths) for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def inventory_of(
    roles: Roles, paddings: Sequence[Padding], use: ObservedUse | None = None,
    documents: Documents | None = None, turned: Collection[Key] = (),
) -> list[Part]:  # fmt: skip
    """What is known of a batch, and what may be padded in it; tensors of ``turned`` have their axes exchanged here."""
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
        part = Part.of(key, held, role, how, *_axes_of(roles, key, known.get(key)), option=option)
        if key in turned:
            part.shape, part.samples = (part.shape[1], part.shape[0], *part.shape[2:]), 1
            part.positions = 0 if part.positions == 1 else part.positions
        found.append(part)
    for name, read in () if use is None else use.unknown(roles.batch).items():
        how = f"padding_idx={read.padding_idx} of its table; it is no part of the batch"
        option = f"these ids to the batch, or padding_idx={read.padding_idx} to their key"
        found.append(Part.of(name, read.ids, "ids", how, 0, 1, option=option))
    return found


def _axes_of(roles: Roles, key: Key, padding: Padding | None) -> tuple[int | None, int | None]:
    """The axes of samples and positions: those of padded data; else the first, and one as long as positions are."""
    shape = tensor_of(roles.inside[key]).shape
    lengths = {tensor_of(roles.inside[k]).shape[axis] for k, (_, axes) in roles.axes.items() for axis in axes}
    also = [axis for axis, n in enumerate(shape) if axis and n in lengths]
    by_ids = None if padding is None or padding.mask.ndim != 2 else (padding.samples, (1 - padding.samples,))
    samples, positions = roles.axes.get(key) or by_ids or (0 if shape else None, also)
    return samples, next(iter(positions), None)


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


def recognised(
    report: Report, batch: Any, padding: Mapping[Key, Any] | None, is_new: Callable[[Tensor], bool]
) -> list[Padding]:
    """The padding of those tensors of a batch that are not rewritten yet; the report takes up the batch."""
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
        report.take_parts(inventory_of(roles, paddings))
    return paddings


def ignored_by_loss(report: Report, loss: Tensor, seen: Mapping[Key, Any]) -> None:
    """Labels of which the loss ignores the padding need no option."""
    tensors = {str(key): held for key, held in seen.items() if isinstance(held, Tensor)}
    parts = [part for part in report.inventory if part.option and part.name in tensors]
    reads = ignored_labels(loss) if parts else []
    for part, read in itertools.product(parts, reversed(reads)):
        if read.of(tensors[part.name]):
            part.role, part.recognised, part.option = "labels", read.source, ""


@dataclass(frozen=True)
class Experiment:
    """One experiment: the change of the batch, and the result."""

    name: str
    changed: str
    result: str


@dataclass
class Report:
    """The result of :func:`examine`; true if all that was recognised or asked for was examined, and nothing was found.

    Attributes:
        inventory: every tensor, array and list of the batch: its role, its axes, and the experiments that changed it.
        skipped: the experiments that were requested, or that the batch needs, and were not made, with the reason.
        findings: the mistakes, each with its line.
        notes: remarks that are not findings, such as a BatchNorm that couples the samples of a batch.
        experiments: the experiments, with the change and the result of each.
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    inventory: list[Part] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``"found"``, ``"incomplete"`` (something that may be wrong was not examined) or ``"ok"``."""
        return "found" if self.findings else "incomplete" if self.unexamined else "ok"

    @property
    def unexamined(self) -> list[str]:
        """What was not examined, why, and what to add, one line each; empty if the report is complete."""
        left = [f"{part.name} may be padded; add {part.option}" for part in self.inventory if part.option]
        left += map(str, self.skipped)
        if left or self.experiments:
            return left
        return [str(note) for note in self.notes] or ["no experiment applies to the batch"]

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``"ok"``."""
        return self.verdict == "ok"

    def __bool__(self) -> bool:
        return self.ok

    def kinds(self) -> list[str]:
        """The distinct kinds of the findings, in order."""
        return list(dict.fromkeys(finding.kind for finding in self.findings))

    def add(self, findings: Sequence[Finding]) -> None:
        """Add findings, each kind once per line."""
        for finding in findings:
            if _identity(finding) not in map(_identity, self.findings):
                self.findings.append(finding)

    def note(self, about: str, message: str, place: Any = None) -> None:
        """Write down, once, what is no fault; ``place`` has a file and a line."""
        self._once(Note(about, message, *((place.file, place.line) if place else ())))

    def skip(self, experiment: str, why: str, option: str = "") -> None:
        """Write down, once, what was asked for, or detected, and is not examined."""
        self._once(Skipped(experiment, why, option))

    def _once(self, record: Note | Skipped) -> None:
        records: list[Any] = self.notes if isinstance(record, Note) else self.skipped
        records += [record] * (record not in records)

    def tried(self, name: str, changed: str, result: str, keys: Iterable[Key] = ()) -> None:
        """Write down what was done, and to which parts of the batch."""
        self.experiments.append(Experiment(name, changed, result))
        self.mark(keys, name)

    def mark(self, keys: Iterable[Key], *experiments: str, **known: str) -> None:
        """Experiments have changed these parts; what else is ``known`` of them now."""
        names = set(map(str, keys))
        for part in self.inventory:
            if part.name in names:
                part.examined = (*dict.fromkeys((*part.examined, *experiments)),)
                vars(part).update(known)

    def take_parts(self, parts: Iterable[Part]) -> None:
        """Take up the parts of a batch that are new."""
        known = {part.name for part in self.inventory}
        self.inventory += [part for part in parts if part.name not in known]

    def take(self, other: Report) -> None:
        """Add everything from another report; of its inventory only what was examined of known parts."""
        self.add(other.findings)
        records: list[Note | Skipped] = [*other.notes, *other.skipped]
        for record in records:
            self._once(record)
        self.experiments += other.experiments
        for part in other.inventory:
            self.mark([part.name], *part.examined)

    def __str__(self) -> str:
        count = len(self.findings)
        lines = [f"{count} finding{'s' * (count != 1)}"]
        if not count and self.unexamined:
            lines = ["incomplete: nothing was found, but not all was examined that may be wrong"]
        lines += _table(self.inventory) if self.inventory else []
        lines += [f"\n{finding}" for finding in self.findings]
        parts: dict[str, Sequence[Any]] = {
            "not examined": self.unexamined,
            "notes": self.notes,
            "experiments": [f"{tried.name} ({tried.changed}): {tried.result}" for tried in self.experiments],
        }
        for title, part in parts.items():
            lines += [f"\n{title}", *(f"  {line}" for line in part)] if part else []
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``json.dumps``."""
        return {"verdict": self.verdict, "ok": self.ok, "unexamined": self.unexamined, **asdict(self)}


def _identity(finding: Finding) -> tuple[object, ...]:
    """Findings of one kind at one line are one; without a line, those with one message."""
    if finding.file:
        return finding.kind, finding.file, finding.line, finding.module, finding.package_line
    return finding.kind, finding.message
