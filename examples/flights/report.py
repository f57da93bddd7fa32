"""What came out: tables, sentences and numbers for programs. All of them are made from ``metrics.json``."""

from __future__ import annotations

import functools
import json
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from .data import Flights
from .pictures import draw

__all__ = ["Spread", "calibration", "calibration_error", "rows", "show", "spread", "write"]

BINS = 10
PLAIN, WITH_OUTAGES = False, True


@dataclass(frozen=True)
class Spread:
    """Of several seeds: mean and standard deviation; of one, no deviation."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


def spread(content: dict[str, Any], model: str, outages: bool, *names: str) -> Spread:
    """Over the seeds: the number found under ``names`` in each run of ``model``."""
    found = [
        float(functools.reduce(operator.getitem, names, one))
        for one in content["runs"]
        if one["model"] == model and (one["outages"] > 0) == outages
    ]
    return Spread(statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None)


def models(content: dict[str, Any]) -> list[str]:
    """In the order of the program."""
    return list(dict.fromkeys(one["model"] for one in content["runs"]))


#: tables: title, whether the mean of training has a row, and columns with what they show and how it was trained
TABLES = (
    (
        "November and December",
        (
            ("RMSE (minutes)", PLAIN, ("test", "rmse")),
            ("MAE (minutes)", PLAIN, ("test", "mae")),
            ("calibration error (minutes)", PLAIN, ("calibration error",)),
        ),
    ),
    (
        "December, RMSE (minutes)",
        (
            ("as it was", PLAIN, ("December", "rmse")),
            ("without weather", PLAIN, ("December without weather", "rmse")),
            ("trained with outages: as it was", WITH_OUTAGES, ("December", "rmse")),
            ("trained with outages: without weather", WITH_OUTAGES, ("December without weather", "rmse")),
        ),
    ),
)


def rows(content: dict[str, Any], number: int) -> tuple[list[str], list[list[str]], list[list[bool]]]:
    """Header, cells and which are the best of their columns (to what is shown), of the first or the second table."""
    title, columns = TABLES[number]
    header = [title, *(name for name, _, _ in columns)]
    names = models(content)
    found: list[list[Spread | None]] = [
        [
            None if model == "mean of training" and outages else spread(content, model, outages, *path)
            for _, outages, path in columns
        ]
        for model in names
    ]
    least = [min(cell.mean for cell in column if cell is not None) for column in zip(*found, strict=True)]
    cells = [["" if cell is None else str(cell) for cell in line] for line in found]
    best = [
        [
            cell is not None and f"{cell.mean:.2f}" == f"{low:.2f}"
            for cell, low in zip(line, least, strict=True)
        ]
        for line in found
    ]
    if number == 0:
        header.append("step (ms)")
        times = content["milliseconds per step"]
        for model, line, marks in zip(names, cells, best, strict=True):
            line.append(f"{times[model]:.1f}" if model in times else "")
            marks.append(model in times and times[model] == min(times.values()))
    return header, [[name, *line] for name, line in zip(names, cells, strict=True)], best


def show(content: dict[str, Any], console: Console) -> None:
    """Both tables; the best of each column is bold."""
    for number in range(len(TABLES)):
        header, lines, best = rows(content, number)
        table = Table(*header)
        for line, marks in zip(lines, best, strict=True):
            cells = [f"[bold]{cell}[/]" if mark else cell for cell, mark in zip(line[1:], marks, strict=True)]
            table.add_row(line[0], *cells)
        console.print(table)
    console.print(f"Means and standard deviations of {content['settings']['seeds']} seeds.")


def write(content: dict[str, Any], out: Path) -> list[Path]:
    """``metrics.json`` and the pictures."""
    metrics = out / "metrics.json"
    metrics.write_text(_one_run_a_line(content), encoding="utf-8")
    return [metrics, *draw(content, out)]


def _one_run_a_line(content: dict[str, Any]) -> str:
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items() if name != "runs"]
    runs = ",\n".join(f"  {json.dumps(one)}" for one in content["runs"])
    return "{\n" + ",\n".join([*lines, f' "runs": [\n{runs}\n ]']) + "\n}\n"


def calibration(predicted: Tensor, flights: Flights) -> list[tuple[float, float]]:
    """Of each tenth of the flights, by prediction: mean predicted and mean real delay of those that arrived."""
    points = []
    for index in predicted.argsort().tensor_split(BINS):
        real = flights.delays[index, 1]
        if real.num_specified() > 0:
            points.append((predicted[index][real.mask].mean().item(), real.mean().item()))
    return points


def calibration_error(points: Sequence[Sequence[float]]) -> float:
    """How far the mean prediction of a tenth is from what came, on average."""
    return statistics.mean(abs(predicted - real) for predicted, real in points)
