"""Writes the table of planted faults into docs/testing.md: ``python -m tests.planted_faults.table``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.planted_faults.fault import room_of
from tests.planted_faults.faults import FAULTS
from tests.written_out import Region

__all__ = ["PAGE", "RESULTS", "table"]

PAGE = Region("testing.md", "planted faults table")
RESULTS = Path(__file__).with_name("results.json")


def table(path: Path = RESULTS) -> str:
    """How many faults were planted in each folder, by whom, and how many of them the tests noticed."""
    results = json.loads(path.read_text(encoding="utf-8"))
    counts: Counter[tuple[str, str]] = Counter()
    for fault in FAULTS:
        ran = "equivalent" if fault.equivalent else results.get(fault.name, {}).get("outcome", "not run")
        for room in (room_of(fault), "all"):
            counts[room, "drawn" if fault.drawn else "by hand"] += 1
            counts[room, ran] += 1
    columns = ("by hand", "drawn", "equivalent", "caught", "missed", "undecided", "not run")
    rooms = [*sorted({room for room, _ in counts} - {"all"}), "all"]
    lines = [f"| folder | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [f"| {_name(room)} | {' | '.join(str(counts[room, c]) for c in columns)} |" for room in rooms]
    return "\n".join(lines) + "\n"


def _name(room: str) -> str:
    return room if room == "all" else f"`{room}`"


if __name__ == "__main__":
    PAGE.write(table())
