"""``python -m benchmarks.wild``: the doctor on every architecture of transformers, and on models of other packages."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def run(
    only: Annotated[str | None, typer.Option(help="Comma-separated names of models; by default all.")] = None,
    out: Annotated[
        Path, typer.Option(help="JSON lines; models that are there are not examined again.")
    ] = Path("wild.jsonl"),
    limit: Annotated[float, typer.Option(help="Seconds for one model.")] = 300,
    processes: Annotated[int, typer.Option(help="How many models at once.")] = 2,
) -> None:
    """Examine models beside the oracle; one line for each model, side of the padding and mode."""
    from rich.progress import Progress

    from benchmarks.wild.examined import models, preload, rows_of
    from benchmarks.wild.page import facts, read
    from benchmarks.wild.processes import in_processes

    _quiet()
    done = {(row["name"], row["model"]) for row in read(out)} if out.exists() else set()
    wanted = [item for item in models() if item[1:] not in done]
    if only:
        wanted = [item for item in wanted if item[1] in only.split(",")]
    with out.open("a", encoding="utf-8") as file, Progress() as progress:
        if not done:
            file.write(json.dumps({"facts": facts()}) + "\n")
        task = progress.add_task("examining", total=len(wanted))
        preload()
        for (package, name, model), rows, reason in in_processes(
            rows_of, wanted, limit=limit, at_once=processes
        ):
            if reason:
                rows.append({"package": package, "name": name, "model": model, "not_examined": reason})
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            progress.update(task, advance=1, description=name)


@app.command()
def one(
    name: Annotated[
        str, typer.Argument(help="An architecture of transformers, or a name of benchmarks/wild/packages.py.")
    ],
    side: Annotated[str, typer.Option("--padding", help="right or left")] = "right",
    train: Annotated[
        bool, typer.Option("--train", help="In training mode; by default in evaluation.")
    ] = False,
) -> None:
    """Examine one model, and print what the oracle says and the report of the doctor."""
    from benchmarks.wild.examined import case_of, examined, models
    from benchmarks.wild.oracle import judge

    _quiet()
    items = [item for item in models() if item[1] == name]
    if not items:
        raise typer.BadParameter(f"no model is called {name!r}", param_hint="'NAME'")
    for item in items:
        case = case_of(item)
        typer.echo(f"{item[2]}: {judge(case, side, training=train)}")
        typer.echo(examined(case, side, training=train))


@app.command()
def page() -> None:
    """Write the tables into docs/in_the_wild.md from benchmarks/results/wild.jsonl."""
    from benchmarks.wild.page import PAGE, RESULTS, tables

    PAGE.write(tables(RESULTS))


def _quiet() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore")


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.wild")
