"""Run every benchmark, print results beside goals, and keep them with their provenance.

A benchmark is a module of this folder with ``run(progress) -> list[dict]``; results go to
``results/<module>.csv``. Names given on the command line choose among the modules.
"""

from __future__ import annotations

import csv
import datetime
import importlib
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

FOLDER = Path(__file__).resolve().parent
Row = dict[str, Any]


def benchmarks() -> dict[str, Callable[[Callable[[str], None]], list[Row]]]:
    """The ``run`` functions of this folder, by the name of their module."""
    sys.path.insert(0, str(FOLDER.parent))
    names = [
        module.name
        for module in pkgutil.iter_modules([str(FOLDER)])
        if module.name not in ("run", "measure", "table")
    ]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module.run for name, module in modules.items() if hasattr(module, "run")}


def provenance() -> Row:
    """What the numbers depend on."""
    import numba
    import torch

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(FOLDER), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short", "--verify", "-q", "HEAD") or "none"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "commit": commit + ("+changes" if git("status", "--porcelain") else ""),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def write(name: str, rows: list[Row], facts: Row) -> None:
    """One CSV file for each benchmark; each line carries the provenance."""
    (FOLDER / "results").mkdir(exist_ok=True)
    columns = list(dict.fromkeys(key for row in [*rows, facts] for key in row))
    with (FOLDER / "results" / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(
            {**facts, **{k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}}
            for row in rows
        )


def show(console: Console, name: str, rows: list[Row]) -> None:
    """A table: one line for each peer, one block for each case."""
    table = Table(title=name, title_justify="left")
    columns = [c for c in rows[0] if c != "family"] if rows else []
    for column in columns:
        table.add_column(column, justify="right" if isinstance(rows[0][column], float) else "left")
    for i, row in enumerate(rows):
        cells = [
            "" if row[c] is None else f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c])
            for c in columns
        ]
        color = {True: "green", False: "red"}.get(row.get("met"))  # type: ignore[arg-type]
        last = i + 1 == len(rows) or rows[i + 1].get("case") != row.get("case")
        table.add_row(*cells, style=color, end_section=last)
    console.print(table)


def main(chosen: list[str]) -> int:
    """Run the ``chosen`` benchmarks, or all."""
    console, found = Console(), benchmarks()
    if unknown := set(chosen) - set(found):
        console.print(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(found)}")
        return 2
    selected = {name: run for name, run in found.items() if not chosen or name in chosen}
    facts, results = provenance(), {}
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    )
    with bar:
        task = bar.add_task("", total=len(selected))
        for name, run in selected.items():

            def tell(what: str, name: str = name) -> None:
                bar.update(task, description=f"{name}: {what}")

            results[name] = run(tell)
            write(name, results[name], facts)
            bar.advance(task)
    for name, rows in results.items():
        show(console, name, rows)
    console.print(", ".join(f"{key} {value}" for key, value in facts.items()))
    goals = [row["met"] for rows in results.values() for row in rows if isinstance(row.get("met"), bool)]
    console.print(f"{sum(goals)} of {len(goals)} goals met")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
