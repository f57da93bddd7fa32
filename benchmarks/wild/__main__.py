"""``python -m benchmarks.wild``: the doctor on every architecture of transformers, and on models of other packages."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
RESULTS = Path(__file__).parents[1] / "results" / "wild.jsonl"


@app.command()
def run(
    only: Annotated[str | None, typer.Option(help="Comma-separated names of architectures; by default all.")] = None,
    out: Annotated[Path, typer.Option(help="JSON lines; what is there already is not examined again.")] = RESULTS,
    limit: Annotated[float, typer.Option(help="Seconds for one model, all modes.")] = 300,
) -> None:
    """Examine models beside the oracle, and keep one line for each model, side of the padding and mode."""
    from rich.progress import Progress

    from benchmarks.wild.examined import work
    from benchmarks.wild.models import models
    from benchmarks.wild.processes import in_processes

    warnings.filterwarnings("ignore")
    done = {(row["name"], row["model"]) for row in read(out)}
    wanted = [item for item in models() if (item[1], item[2]) not in done]
    if only:
        wanted = [item for item in wanted if item[1] in only.split(",")]
    with out.open("a", encoding="utf-8") as file, Progress() as progress:
        task = progress.add_task("examining", total=len(wanted))
        for item, rows, reason in in_processes(work, wanted, limit=limit):
            if reason:
                rows.append({"package": item[0], "name": item[1], "model": item[2], "not_examined": reason})
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            progress.update(task, advance=1, description=item[1])


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.wild")
