"""Writes the table of docs/with_other_libraries.md from what the tests declare: ``python -m tests.ecosystem.table``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from tests.written_out import Region

__all__ = ["FILES", "PAGE", "VERDICTS", "Row", "declared", "table"]

FOLDER = Path(__file__).parent
#: Those that declare rows; others run programs.
FILES = [
    f
    for f in sorted(FOLDER.glob("test_*.py"))
    if "tests.ecosystem.rows import" in f.read_text(encoding="utf-8")
]
PAGE = Region("with_other_libraries.md", "ecosystem table")

#: The decorators of ``rows.py``, in the order of the rows of a library, and the words of the page.
VERDICTS = {"works": "works", "one_line": "one line", "refused": "refused", "beware": "**not caught**"}


class Row(NamedTuple):
    """One line of the table."""

    library: str
    verdict: str
    what: str
    way: str = ""


def declared(path: Path) -> list[Row]:
    """The rows of the tests in a file, which is read and not imported."""
    rows = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if (
                    isinstance(decorator, ast.Call)
                    and isinstance(decorator.func, ast.Name)
                    and decorator.func.id in VERDICTS
                ):
                    library, what, *way = map(ast.literal_eval, decorator.args)
                    rows.append(Row(library, decorator.func.id, what, *way))
    return rows


def table() -> str:
    """The page: a row for each declaration, library by library."""
    order = list(VERDICTS)
    rows = sorted(
        {row for path in FILES for row in declared(path)},
        key=lambda row: (row.library.lower(), order.index(row.verdict), row.what),
    )
    lines = ["| library | feature | | write |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.library} | {row.what} | {VERDICTS[row.verdict]} | {row.way} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write(table())
