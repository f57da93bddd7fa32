"""Writes docs/jagged_table.md: ``python -m tests.unit.semantics.jagged.table``. The tests hold it to be true."""

from __future__ import annotations

from pathlib import Path

from tests.unit.semantics.jagged.programs import PROGRAMS

__all__ = ["PAGE", "table"]

PAGE = Path(__file__).parents[4] / "docs" / "jagged_table.md"


def table() -> str:
    """A row for each program."""
    lines = ["| program | runs on | in a graph | why |", "| --- | --- | --- | --- |"]
    for group, programs in PROGRAMS.items():
        lines.append(f"| **{group}** | | | |")
        for program in programs:
            where = "padded form" if program.why else "rows"
            inside = "padded form" if program.why or program.in_graph else "rows"
            why = program.why or (f"in a graph: {program.in_graph}" if program.in_graph else "")
            lines.append(f"| `{program.text}` | {where} | {inside} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
