"""What was measured: one row for each contender of each case, as a CSV file for each family."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

__all__ = ["Row", "read_folder", "read_rows", "with_provenance", "write_rows"]


@dataclass(frozen=True)
class Row:
    """The times of one contender in one case. Times are milliseconds of a single call."""

    family: str
    operation: str
    work: str
    shape: str
    entries: int
    density: float | None
    dtype: str
    note: str
    peer: str
    repetitions: int
    #: calls in each repetition: so many that the clock can tell
    calls: int
    median_ms: float
    q1_ms: float
    q3_ms: float
    #: how many times as long as maskgrad's median this one's is
    ratio: float
    #: what the case must at least read and write
    bytes: int | None = None
    #: how many times as much memory as maskgrad this one takes at its peak, where that is measured
    memory: float | None = None
    #: what was hoped for, ``">= 20"``, and whether it came true
    goal: str = ""
    met: bool | None = None
    #: machine, versions, date: the same for all rows of a run
    provenance: tuple[tuple[str, str], ...] = ()

    @property
    def case(self) -> tuple[Any, ...]:
        """What the contenders of one case have in common."""
        return (self.family, self.operation, self.work, self.shape, self.density, self.dtype, self.note)

    @property
    def gigabytes_per_second(self) -> float | None:
        """What must be moved, divided by the time."""
        return None if self.bytes is None else self.bytes / self.median_ms / 1e6


_COLUMNS = [field.name for field in fields(Row) if field.name != "provenance"]
_NUMBERS = {
    "entries": int,
    "density": float,
    "repetitions": int,
    "calls": int,
    "median_ms": float,
    "q1_ms": float,
    "q3_ms": float,
    "ratio": float,
    "bytes": int,
    "memory": float,
}
#: files from before a column was added lack it
_LATER = frozenset(("memory",))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write ``rows`` to ``path``, each with its provenance; what was there is replaced when all is written."""
    known = list(dict.fromkeys(name for row in rows for name, _ in row.provenance))
    draft = path.with_suffix(".part")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*_COLUMNS, *known], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = {name: _written(getattr(row, name)) for name in _COLUMNS}
            writer.writerow({**cells, **dict(row.provenance)})
    draft.replace(path)


def _written(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def read_rows(path: Path) -> list[Row]:
    """The rows of one file.

    Raises:
        ValueError: it is not a file of results, or a number in it is none.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        absent = [name for name in _COLUMNS if name not in {*(reader.fieldnames or ()), *_LATER}]
        if absent:
            raise ValueError(f"{path} is no file of `make bench`: the column {absent[0]!r} is missing")
        return [_row(line, f"{path}, line {number}") for number, line in enumerate(reader, start=2)]


def _row(line: Mapping[str, str], where: str) -> Row:
    cells: dict[str, Any] = {}
    for name in _COLUMNS:
        text = line.get(name, "")
        if name == "met":
            cells[name] = {"True": True, "False": False}.get(text)
        elif name in _NUMBERS:
            cells[name] = _number(text, _NUMBERS[name], f"{where}, column {name}")
        else:
            cells[name] = text
    provenance = tuple((name, text) for name, text in line.items() if name not in _COLUMNS)
    return Row(**cells, provenance=provenance)


def _number(text: str, kind: type, where: str) -> float | None:
    if not text:
        return None
    try:
        value: float = kind(text)
    except ValueError:
        raise ValueError(f"{where}: expected a number, found {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, found {text!r}")
    return value


def read_folder(folder: Path) -> list[Row]:
    """The rows of all CSV files in ``folder``, by name of the file."""
    return [row for path in sorted(folder.glob("*.csv")) for row in read_rows(path)]


def with_provenance(rows: Iterable[Row], facts: Mapping[str, str]) -> list[Row]:
    """``rows`` that say where they come from."""
    return [replace(row, provenance=tuple(facts.items())) for row in rows]
