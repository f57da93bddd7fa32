"""Write the table of README.md from the results that were measured: ``python benchmarks/table.py``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parent
README = FOLDER.parent / "README.md"
BEGIN, END = "<!-- benchmark table: made by benchmarks/table.py -->", "<!-- end of benchmark table -->"


def table() -> str:
    """The rows with a goal, in Markdown, and what they depend on."""
    results = pd.concat([pd.read_csv(path) for path in sorted((FOLDER / "results").glob("*.csv"))])
    goals = results[results["goal"].notna()]
    lines = ["| case | beside | times as long as maskgrad | goal |", "| --- | --- | ---: | ---: |"]
    lines += [f"| {r.case} | {r.peer} | {r.ratio:.2f} | {r.goal} |" for r in goals.itertuples()]
    facts = results.iloc[-1]
    note = (
        f"Medians of interleaved runs on {facts.cores} cores ({facts.cpu}), torch {facts.torch}, {facts.date}. A ratio "
        "above 1 means that maskgrad is faster. The dense mean, which reads no mask, is the exception that must not be "
        "more than three times as fast."
    )
    return "\n".join([*lines, "", note])


def main() -> None:
    """Replace the region of README.md that belongs to this script."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
