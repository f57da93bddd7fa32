"""The report of an examination: findings, notes, and which experiments were made; as text, JSON and HTML."""

from __future__ import annotations

import io
import json
import linecache
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.inventory import Part, Skipped, table_of

__all__ = ["Experiment", "Report"]


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
