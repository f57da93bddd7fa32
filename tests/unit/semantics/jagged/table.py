"""Writes the table of docs/variable_length.md: ``python -m tests.unit.semantics.jagged.table``."""

from __future__ import annotations

from tests.unit.semantics.jagged.programs import PROGRAMS
from tests.written_out import Region

__all__ = ["PAGE", "table"]

PAGE = Region("variable_length.md", "jagged table")


def table() -> str:
    """A row for each program."""
    lines = ["| program | runs on | in a graph | why |", "| --- | --- | --- | --- |"]
    for group, programs in PROGRAMS.items():
        lines.append(f"| **{group}** | | | |")
        for program in programs:
            where = "padded form" if program.why else "rows"
            inside = "padded form" if program.why or program.in_graph else "rows"
            why = program.why or program.in_graph
            lines.append(f"| `{program.text}` | {where} | {inside} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write(table())
