"""What an examination found: kinds, where, how much, and what to write instead."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from maskgrad.doctor.frames import Place

__all__ = ["KINDS", "Finding", "Note"]

#: every kind of finding in one sentence
KINDS = {
    "padding-leak": "what lies in the padding changes the loss or a gradient",
    "nan-under-mask": "NaN or infinity in the padding reaches the loss or a gradient",
    "padding-length": "one more column of padding changes the loss or a gradient",
    "denominator": "the result depends on how the batch is split into parts",
    "empty-row": "a sample that is all padding makes NaN",
    "sample-coupling": "a sample changes what is computed for another one",
    "order": "the order of the samples changes the loss or a gradient",
    "densified-gradient": "a sparse gradient is turned into a dense one",
    "silent-hook": "a hook is registered and was not called",
    "unused-parameter": "a parameter takes no part in the loss",
    "zero-gradient": "the gradient of a parameter is zero because all that reached it was masked",
    "stale-rows": "rows of a table were read before the optimizer had brought them up to date",
}


@dataclass(frozen=True)
class Finding:
    """One fault: the line of the user's program, what is wrong there, and what to write instead.

    Attributes:
        kind: one of the kinds that the page "Is my masking right?" lists.
        message: what was changed and what followed, in one or two sentences.
        file: path of the source file, empty if no line is known.
        line: number of the line, 0 if none is known.
        code: the text of the line.
        remedy: code to write instead, with maskgrad and without.
        module: dotted name of the module that was running.
        operation: the operation of PyTorch at which real entries first depended on padding.
        affected: how much is affected: names of numbers, such as the change of the loss, and their values.
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

    @classmethod
    def at(cls, place: Place | None, kind: str, message: str, **rest: Any) -> Finding:
        """A finding at a line of the program; ``place`` may be unknown."""
        if place is None:
            return cls(kind, message, **rest)
        return cls(kind, message, place.file, place.line, place.code, **rest)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "(no line is known)"
        lines = [f"{self.kind} at {where}"]
        if self.code:
            lines.append(f"    {self.code}")
        if self.module:
            lines.append(f"  in module {self.module}")
        lines.append(f"  {self.message}")
        if self.remedy:
            lines.append("  instead:")
            lines += [f"    {line}" for line in self.remedy.splitlines()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Note:
    """Something worth knowing that is no fault; ``about`` says which experiment it belongs to."""

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)
