"""What an examination found: kinds, where, how much, and what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from maskgrad.doctor.frames import Place
from maskgrad.doctor.remedies import remedy_for

__all__ = ["KINDS", "Finding", "Note"]

#: every kind of finding in one sentence
KINDS = {
    "padding-leak": "the values of the padding change the loss or a gradient",
    "nan-under-mask": "NaN or infinity in the padding reaches the loss or a gradient",
    "padding-length": "more padding, or none, changes the loss or a gradient",
    "denominator": "the result depends on how the batch is split into parts",
    "empty-row": "a sample that is all padding gives NaN",
    "order": "the order of the samples changes the loss or a gradient",
    "document-leak": "another document of the pack changes the loss of a document, or a gradient",
    "document-alone": "a document gives different results packed and alone",
    "future-leak": "later positions change the loss of earlier ones, or a gradient",
}


@dataclass(frozen=True)
class Finding:
    """One mistake: the line of the user's program, the message, and a fix.

    Attributes:
        kind: one of the kinds that the page "Is my masking right?" lists.
        message: what was changed and what followed, in one or two sentences.
        file: path of the source file, empty if no line is known.
        line: number of the line, 0 if none is known.
        code: the text of the line.
        remedy: code to write instead, with maskgrad and without.
        module: dotted name of the running module.
        operation: the first PyTorch operation whose real entries depend on padding.
        affected: the size of the effect, by name, such as the change of the loss.
        package_file: path of a file of an installed package, if the line calls one: the innermost that was running.
        package_line: number of the line in it.
        callers: the lines of the program through which the line was reached, the innermost first, as "file:line: code".
    """

    kind: str
    message: str
    file: str = ""
    line: int = 0
    code: str = ""
    remedy: str = ""
    module: str = ""
    operation: str = ""
    affected: dict[str, Any] = field(default_factory=dict)
    package_file: str = ""
    package_line: int = 0
    callers: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, where: Any, kind: str, message: str, **rest: Any) -> Finding:
        """A finding with what to write instead: at a ``Place``, an operation that was seen there, or None."""
        place = where if where is None or isinstance(where, Place) else where.place
        known: dict[str, Any] = {}
        if place is not None:
            known = {"file": place.file, "line": place.line, "code": place.code}
            known |= {"package_file": place.package_file, "package_line": place.package_line}
        if where is not place:
            known |= {"operation": where.operation, "module": getattr(where, "module", "")}
            known["callers"] = getattr(where, "callers", [])
        known["remedy"] = remedy_for(kind, known.get("operation", ""), getattr(where, "instead", ()))
        return cls(kind, message, **known | rest)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "(no line is known)"
        lines = [f"{self.kind} at {where}"]
        if self.code:
            lines.append(f"    {self.code}")
        if self.package_file:
            place = Place(self.package_file, self.package_line)
            short = re.split(r"[\\/](?:site|dist)-packages[\\/]", place.file)[-1]
            lines += [f"  in {short}:{place.line}: {place.code}"]
        lines += [f"  called at {caller}" for caller in self.callers]
        if self.module:
            lines.append(f"  in module {self.module}")
        lines.append(f"  {self.message}")
        if self.remedy:
            meaning = " (mask: (B, T), True or 1 where entries are real)" if "mask" in self.remedy else ""
            lines.append(f"  instead{meaning}:")
            lines += [f"    {line}" for line in self.remedy.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Note:
    """A remark that is not a finding; ``about`` names its experiment."""

    about: str
    message: str
    file: str = ""
    line: int = 0

    @classmethod
    def at(cls, place: Place | None, about: str, message: str) -> Note:
        """A note about a line of the program."""
        return cls(about, message, place.file, place.line) if place else cls(about, message)

    def __str__(self) -> str:
        where = f" ({self.file}:{self.line})" if self.file else ""
        return f"{self.about}: {self.message}{where}"
