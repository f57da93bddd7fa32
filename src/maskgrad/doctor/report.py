"""The report of an examination: findings, notes, and which experiments were made; as text, JSON and HTML."""

from __future__ import annotations

import json
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.inventory import Part, Skipped, table_of
from maskgrad.errors import ExaminationError

__all__ = ["Experiment", "Report", "check_blame", "identity"]


@dataclass(frozen=True)
class Experiment:
    """One experiment: the change of the batch, and the result."""

    name: str
    changed: str
    result: str


def check_blame(whom: str) -> None:
    """ExaminationError unless findings can name the lines of that."""
    if whom not in ("program", "package"):
        raise ExaminationError(f"blame: expected 'program' or 'package', found {whom!r}")


@dataclass
class Report:
    """The result of :func:`examine`; true if all that was recognised or asked for was examined, and nothing was found.

    Attributes:
        inventory: every tensor, array and list of the batch: its role, its axes, and the experiments that changed it.
        skipped: the experiments that were asked for, or that the batch asks for, and were not made, with the reason.
        findings: the mistakes, each with its line.
        notes: remarks that are not findings, such as a BatchNorm that couples the samples of a batch.
        experiments: the experiments, with the change and the result of each.
        trail: lines of the program at which padding differed, for the picture.
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    trail: dict[str, dict[int, str]] = field(default_factory=dict)
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
        """Lines that say what was not examined, why, and what to add; empty if the report is complete."""
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
        known = {identity(finding) for finding in self.findings}
        for finding in findings:
            if identity(finding) not in known:
                known.add(identity(finding))
                self.findings.append(finding)

    def note(self, note: Note) -> None:
        """Add a note, once."""
        if note not in self.notes:
            self.notes.append(note)

    def skip(self, skipped: Skipped) -> None:
        """Add a skipped experiment, once."""
        if skipped not in self.skipped:
            self.skipped.append(skipped)

    def blame(self, whom: str) -> None:
        """Name the lines of the program, or those of installed packages that it calls."""
        if whom == "package":
            self.findings = [finding.at_package() for finding in self.findings]

    def take(self, other: Report) -> None:
        """Add everything from another report."""
        self.add(other.findings)
        for note in other.notes:
            self.note(note)
        self.experiments += other.experiments
        self.inventory += other.inventory
        self.skipped += [skipped for skipped in other.skipped if skipped not in self.skipped]
        for file, lines in other.trail.items():
            self.add_lines({(file, line): what for line, what in lines.items()})

    def add_lines(self, lines: Mapping[tuple[str, int], str]) -> None:
        """Take up what differed at lines (file and number): real entries, or padding only."""
        for (file, line), what in lines.items():
            known = self.trail.setdefault(file, {})
            if known.get(line) != "real":
                known[line] = what

    def __str__(self) -> str:
        lines = [_headline(self), *_aligned(table_of(self.inventory) if self.inventory else [])]
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

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Report:
        """Rebuild a report from :meth:`as_dict`, also after JSON."""
        return cls(
            [Finding(**finding) for finding in plain["findings"]],
            [Note(**note) for note in plain["notes"]],
            [Experiment(**tried) for tried in plain["experiments"]],
            {file: {int(n): what for n, what in lines.items()} for file, lines in plain["trail"].items()},
            [Part.from_dict(part) for part in plain["inventory"]],
            [Skipped(**skipped) for skipped in plain["skipped"]],
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON; written to ``path`` too if that is given."""
        text = json.dumps(self.as_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML page with the program's lines; written to ``path`` too if that is given."""
        text = _page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def _headline(report: Report) -> str:
    count = len(report.findings)
    if not count and report.unexamined:
        return "incomplete: nothing was found, but not all was examined that may be wrong"
    return f"{count} finding{'s' * (count != 1)}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def identity(finding: Finding) -> tuple[object, ...]:
    """Findings of one kind at one line are one; without a line it is the message that tells them apart."""
    if finding.file:
        return finding.kind, finding.file, finding.line, finding.module, finding.package_line
    return finding.kind, finding.message


_STYLE = """
body { color: #222; font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
pre { background: #f6f6f6; padding: .5em; overflow-x: auto; }
.finding { border-left: 4px solid #c33; padding-left: 1em; }
table.code { border-collapse: collapse; font: 13px/1.4 monospace; width: 100%; }
table.code td { padding: 0 .6em; white-space: pre; }
.code td:first-child { color: #888; text-align: right; }
tr.padding { background: #fff3cd; } tr.real { background: #f8d7da; }
tr.fault { background: #c33; color: #fff; } .key span { padding: 0 .6em; margin-right: .6em; }
"""
_MEANING = {
    "padding": "padding differs here",
    "fault": "a finding",
    "real": "real entries differ",
}


def _page(report: Report) -> str:
    parts = [f"<h1>{escape(_headline(report))}</h1>"]
    names, *held = table_of(report.inventory)
    if held:
        cells = "".join(_row(*map(escape, row)) for row in held)
        parts.append(f"<table><tr><th>{'</th><th>'.join(names)}</th></tr>{cells}</table>")
    if report.unexamined:
        parts.append(
            f"<h2>Not examined</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in report.unexamined)}</ul>"
        )
    for finding in report.findings:
        where = f"{escape(finding.file)}:{finding.line}" if finding.file else "no line is known"
        parts.append(
            f'<div class="finding"><h2>{escape(finding.kind)}</h2><p>{where}'
            f"{f' in <code>{escape(finding.module)}</code>' if finding.module else ''}</p>"
            f"<pre>{escape(finding.code)}</pre><p>{escape(finding.message)}</p>"
            f"<p>Instead:</p><pre>{escape(finding.remedy)}</pre></div>"
        )
    if report.notes:
        notes = "".join(f"<li>{escape(str(note))}</li>" for note in report.notes)
        parts.append(f"<h2>Notes</h2><ul>{notes}</ul>")
    marked = {file: dict(lines) for file, lines in report.trail.items()}
    for finding in report.findings:
        if finding.file:
            marked.setdefault(finding.file, {})[finding.line] = "fault"
    parts += [_listing(file, lines) for file, lines in marked.items()]
    if report.experiments:
        rows = "".join(
            _row(escape(tried.name), escape(tried.changed), escape(tried.result))
            for tried in report.experiments
        )
        head = "<tr><th>name</th><th>changed</th><th>result</th></tr>"
        parts.append(f"<h2>Experiments</h2><table>{head}{rows}</table>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>maskgrad doctor</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _row(*cells: str, kind: str = "") -> str:
    return f'<tr class="{kind}"><td>{"</td><td>".join(cells)}</td></tr>'


def _listing(file: str, lines: dict[int, str]) -> str:
    """The lines of one file around those at which something differed."""
    shown = sorted({near for line in lines for near in range(line - 2, line + 3) if near > 0})
    rows, before = [], 0
    for number in shown:
        text = linecache.getline(file, number)
        if not text:
            continue
        if before and number > before + 1:
            rows.append(_row("⋮", ""))
        rows.append(_row(str(number), escape(text.rstrip()), kind=lines.get(number, "")))
        before = number
    key = "".join(_row("", meaning, kind=kind) for kind, meaning in _MEANING.items())
    return f'<h2>{escape(file)}</h2><table class="code">{"".join(rows)}</table><table class="code key">{key}</table>'
