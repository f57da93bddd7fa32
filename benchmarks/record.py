"""Keep what `make bench` measured: ``python -m benchmarks.record [REPORT]``.

The CSV files of the report go to ``benchmarks/results``, its pictures to ``docs/pictures/benchmarks``; then the
tables of the pages about speed are written anew from ``benchmarks/results``. Without a report only
that is done.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from benchmarks.headlines import headlines
from benchmarks.pictures import PICTURES, draw
from benchmarks.results import Row, read_folder
from benchmarks.table import family_table, goals_table, provenance_note

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DRAWN = ROOT / "docs" / "pictures" / "benchmarks"
DOCS = ROOT / "docs"
PAGE, GOALS, TABLES = (DOCS / f"benchmark{name}.md" for name in ("s", "_goals", "_tables"))
COMPILATION = DOCS / "compilation.md"

BEGIN, END = "<!-- benchmark table: made by benchmarks/record.py -->", "<!-- end of benchmark table -->"
_REGION = re.compile(r"<!-- benchmark table: .*?-->.*?<!-- end of benchmark table -->", re.DOTALL)


def keep(report: Path) -> None:
    """Copy the numbers of ``report``, and draw what is now in ``benchmarks/results``."""
    files = sorted(report.glob("*.csv"))
    if not files:
        raise SystemExit(
            f"there are no CSV files in {report}: run `make bench` first, or name another folder"
        )
    read_folder(report)  # a file of something else is refused before anything is replaced
    RESULTS.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, RESULTS / file.name)
    DRAWN.mkdir(parents=True, exist_ok=True)
    drawn = {path.stem for path in draw(read_folder(RESULTS), DRAWN)}
    for name in PICTURES:
        if name not in drawn:
            print(f"not measured, so that its picture stays as it is: {name}")


def pages(rows: list[Row]) -> dict[Path, str]:
    """What the pages with tables should be."""
    goals = f"{goals_table(rows)}\n\n{provenance_note(rows)}"
    graphs = [row for row in rows if row.family == "compiled"]
    tables = {
        PAGE: f"{headlines(rows)}\n\n{provenance_note(rows)}",
        GOALS: goals,
        COMPILATION: f"{family_table(graphs)}\n\n{provenance_note(graphs)}",
    }
    found = {page: _with_table(page.read_text(encoding="utf-8"), table) for page, table in tables.items()}
    found[TABLES] = _all_tables(rows)
    return found


def _with_table(page: str, table: str) -> str:
    return _REGION.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page)


def _all_tables(rows: list[Row]) -> str:
    introduction = (
        "**In short**: all numbers, written by `benchmarks/record.py` from `benchmarks/results`; "
        "[Benchmarks](benchmarks.md) explains them. "
        "A number under a peer is how many times as long as maskgrad it takes: above 1, maskgrad is faster. Times are "
        "medians, with quartiles in parentheses."
    )
    parts = ["# Benchmark tables", introduction]
    for family in dict.fromkeys(row.family for row in rows):
        its = [row for row in rows if row.family == family]
        parts += [f"## {family}", provenance_note(its), family_table(its)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    """Keep the report, if one is named, and write the tables."""
    if arguments:
        keep(Path(arguments[0]))
    for path, text in pages(read_folder(RESULTS)).items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
