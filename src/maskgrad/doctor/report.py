"""The inventory of a batch; the report: findings, notes, and which experiments were made; as text, JSON and HTML."""

from __future__ import annotations

import io
import json
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.inferred import ObservedUse, ignored_labels
from maskgrad.doctor.packed import LABELS, Documents, is_structure
from maskgrad.doctor.padding import Padding, with_given
from maskgrad.doctor.roles import LENGTHS, PADS, PAIRS, Roles, is_selection

__all__ = ["Experiment", "Part", "Report", "Skipped", "Stock", "inventory_of", "table_of"]


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
        if self.findings:
            return "found"
        return "incomplete" if self.unexamined else "ok"

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

    def note(self, note: Note) -> None:
        """Add a note, once."""
        if note not in self.notes:
            self.notes.append(note)

    def skip(self, skipped: Skipped) -> None:
        """Add a skipped experiment, once."""
        if skipped not in self.skipped:
            self.skipped.append(skipped)

    def take(self, other: Report) -> None:
        """Add everything from another report."""
        self.add(other.findings)
        for note in other.notes:
            self.note(note)
        for skipped in other.skipped:
            self.skip(skipped)
        self.experiments += other.experiments
        self.inventory += other.inventory

    def __str__(self) -> str:
        count = len(self.findings)
        lines = [f"{count} finding{'s' * (count != 1)}"]
        if not count and self.unexamined:
            lines = ["incomplete: nothing was found, but not all was examined that may be wrong"]
        lines += _aligned(table_of(self.inventory) if self.inventory else [])
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
        """Plain data."""
        return {"verdict": self.verdict, "ok": self.ok, "unexamined": self.unexamined, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON; written to ``path`` too if that is given."""
        return _written(json.dumps(self.as_dict(), indent=2), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML page with the program's lines; written to ``path`` too if that is given."""
        return _written(_page(self), path)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return text


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _identity(finding: Finding) -> tuple[object, ...]:
    """Findings of one kind at one line are one; without a line, those with one message."""
    if finding.file:
        return finding.kind, finding.file, finding.line, finding.module, finding.package_line
    return finding.kind, finding.message


def _page(report: Report) -> str:
    """The text of the report as HTML, with the lines of the program around each finding."""
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.text import Text

    console = Console(record=True, file=io.StringIO(), width=160)
    # soft_wrap: a path and a line of code are copied as a whole
    console.print(Text(str(report)), soft_wrap=True)
    for file in dict.fromkeys(finding.file for finding in report.findings if finding.file):
        lines = {finding.line for finding in report.findings if finding.file == file}
        shown = (max(1, min(lines) - 5), max(lines) + 5)
        console.print(Text(f"\n{file}"), soft_wrap=True)
        code = "".join(linecache.getlines(file))
        console.print(Syntax(code, "python", line_numbers=True, line_range=shown, highlight_lines=lines))
    return console.export_html(inline_styles=True)
