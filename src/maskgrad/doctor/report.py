"""The report of an examination: findings, notes, and which experiments were made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskgrad.doctor.findings import Finding, Note

__all__ = ["Experiment", "Report", "identity"]


@dataclass(frozen=True)
class Experiment:
    """One experiment: what was changed in the batch, and what came of it."""

    name: str
    changed: str
    result: str


@dataclass
class Report:
    """What :func:`examine` found; true if nothing is wrong.

    Attributes:
        findings: the faults, each with its line.
        notes: what is worth knowing and no fault, such as a BatchNorm that couples the samples of a batch.
        experiments: what was tried, what was changed in each, and the result.
        padding: for each key of the batch how its padding was known.
        trail: lines of the program at which padding differed, for the picture.
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    padding: dict[str, str] = field(default_factory=dict)
    trail: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def kinds(self) -> list[str]:
        """The kinds of the findings, each once, in the order in which they were found."""
        return list(dict.fromkeys(finding.kind for finding in self.findings))

    def add(self, findings: Sequence[Finding]) -> None:
        """Take findings up, each kind at each line once."""
        known = {identity(finding) for finding in self.findings}
        for finding in findings:
            same = identity(finding)
            if same not in known:
                known.add(same)
                self.findings.append(finding)

    def note(self, note: Note) -> None:
        """Take a note up, once."""
        if note not in self.notes:
            self.notes.append(note)

    def __str__(self) -> str:
        lines = [f"{len(self.findings)} findings" if len(self.findings) != 1 else "1 finding"]
        lines += [f"\n{finding}" for finding in self.findings]
        if self.notes:
            lines.append("\nnotes")
            lines += [f"  {note}" for note in self.notes]
        if self.padding:
            lines.append("\npadding")
            lines += [f"  {key}: {source}" for key, source in self.padding.items()]
        if self.experiments:
            lines.append("\nexperiments")
            lines += [f"  {tried.name} ({tried.changed}): {tried.result}" for tried in self.experiments]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": self.ok,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": [note.as_dict() for note in self.notes],
            "experiments": [vars(tried) for tried in self.experiments],
            "padding": dict(self.padding),
            "trail": {file: dict(lines) for file, lines in self.trail.items()},
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Report:
        """The report that :meth:`as_dict` was made of, also after a way through JSON."""
        return cls(
            [Finding(**finding) for finding in plain["findings"]],
            [Note(**note) for note in plain["notes"]],
            [Experiment(**tried) for tried in plain["experiments"]],
            dict(plain["padding"]),
            {file: {int(n): what for n, what in lines.items()} for file, lines in plain["trail"].items()},
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON; written to ``path`` too if that is given."""
        text = json.dumps(self.as_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML page with the program's lines; written to ``path`` too if that is given."""
        from maskgrad.doctor.page import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def identity(finding: Finding) -> tuple[object, ...]:
    """Findings of one kind at one line are one; without a line it is the message that tells them apart."""
    if finding.file:
        return finding.kind, finding.file, finding.line, finding.module
    return finding.kind, finding.message
