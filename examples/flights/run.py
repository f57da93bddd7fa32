"""The course of the program: every model, with every seed, learns from the data as they are and with outages."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

import maskgrad as mg

from .data import NUMBERS, Flights, Split, join, load_tables, split
from .ranks import Ranks
from .report import calibration, calibration_error, show, write
from .rivals import boosted_trees, filled_with_means, iterative_imputer, mean_delay, with_indicators
from .speed import milliseconds_per_step
from .training import Course, Inputs, Treatment, errors, fit, predict

__all__ = ["NETWORKS", "OUTAGES", "Settings", "run"]

#: the share of flights without weather, in training with outages
OUTAGES = 0.2

#: by name: how numbers are treated, fitted on the training part
NETWORKS: dict[str, Callable[[Split], Treatment]] = {
    "masked": lambda _: lambda numbers: numbers,
    "filled with means": lambda _: filled_with_means,
    "means and indicators": lambda _: with_indicators,
    "IterativeImputer": iterative_imputer,
}
TREES, MEAN = "boosted trees", "mean of training"


@dataclass(frozen=True)
class Settings:
    """What decides the numbers of a run; one that is resumed must have the same."""

    epochs: int
    seeds: int
    every: int


class Results:
    """What is known so far, in ``results.json``, with a folder of checkpoints: an interrupted run goes on behind it."""

    def __init__(self, out: Path, settings: Settings, *, resume: bool, writes: bool) -> None:
        self.path, self.settings = out / "results.json", asdict(settings)
        self.resume, self.writes = resume, writes
        self.known: dict[str, dict[str, Any]] = {}
        if resume and self.path.exists():
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["settings"] != self.settings:
                options = " ".join(f"--{name} {value}" for name, value in saved["settings"].items())
                raise ValueError(f"{out} has a run with other options; go on with: {options} --resume")
            self.known = saved["results"]
        elif writes:
            shutil.rmtree(out / "checkpoints", ignore_errors=True)
        self._write()

    def checkpoint(self, key: str) -> Path | None:
        """Where the epochs of one training are kept; the other ranks read it when they resume, and never write."""
        if not self.writes and not self.resume:
            return None
        folder = self.path.with_name("checkpoints")
        folder.mkdir(exist_ok=True)
        return folder / f"{key.replace(', ', '-').replace(' ', '_')}.pt"

    def add(self, key: str, result: dict[str, Any]) -> None:
        """Known from now on."""
        self.known[key] = result
        self._write()

    def _write(self) -> None:
        if self.writes:
            unfinished = self.path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps({"settings": self.settings, "results": self.known}))
            unfinished.replace(self.path)


def run(settings: Settings, out: Path, resume: bool, ranks: Ranks) -> None:
    """Load, train, compare, and write the report; of several processes the first one speaks."""
    console = Console(quiet=ranks.rank > 0)
    results = Results(out, settings, resume=resume, writes=ranks.rank == 0)
    with console.status("reading and joining the tables"):
        tables = load_tables()
        parts = split(join(**tables | {"flights": tables["flights"].iloc[:: settings.every]}))
    missing: Tensor = 1 - parts.training.numbers.mask.float().mean(0)
    console.print(
        f"{len(parts.training):,} flights to learn from, {len(parts.validation):,} to look at, "
        f"{len(parts.test):,} to predict; {missing.mean():.1%} of the numbers are missing."
    )
    plan = [(seed, share) for seed in range(settings.seeds) for share in (0.0, OUTAGES)]
    with _progress(console) as progress:
        bar = progress.add_task("", total=len(plan) * (len(NETWORKS) * settings.epochs + 1), note="")
        inputs = {}
        for name, fitted in NETWORKS.items():
            progress.update(bar, description=name, note="")
            inputs[name] = _networks(name, fitted(parts), parts, plan, results, ranks, progress)
        if ranks.rank > 0:
            return  # trees grow in one process
        progress.update(bar, description=TREES, note="")
        for seed, share in plan:
            start = time.process_time()
            key = _key(TREES, seed, share)
            if key not in results.known:
                predicted = boosted_trees(parts, seed, share)
                results.add(key, _result(TREES, seed, share, start, predicted, parts))
            progress.advance(bar)
        progress.update(bar, description="steps, in turns")
        milliseconds = milliseconds_per_step(parts, inputs)
    mean = mean_delay(parts)
    content = {
        "settings": asdict(settings) | {"outages": OUTAGES, "processes": ranks.number},
        "runs": [
            _result(MEAN, 0, 0.0, time.process_time(), (mean, mean), parts),
            *results.known.values(),
        ],
        "milliseconds per step": milliseconds,
        "flights": {name: len(part) for name, part in vars(parts).items() if isinstance(part, Flights)},
        "missing": dict(zip(NUMBERS, missing.tolist(), strict=True)),
        "versions": {"torch": str(torch.__version__), "maskgrad": mg.__version__},
    }
    show(content, console)
    console.print("Report: " + ", ".join(map(str, write(content, out))), soft_wrap=True)


def _networks(
    name: str,
    treat: Treatment,
    parts: Split,
    plan: list[tuple[int, float]],
    results: Results,
    ranks: Ranks,
    progress: Progress,
) -> Inputs:
    """Train the network of one treatment as planned; its inputs, for the stopwatch."""
    bar = progress.tasks[0]
    training, validation, test = (
        Inputs.of(part, treat) for part in (parts.training, parts.validation, parts.test)
    )
    epochs = results.settings["epochs"]
    for seed, share in plan:
        key, before = _key(name, seed, share), bar.completed
        if key not in results.known:
            start = time.process_time()

            def after_epoch(course: Course, before: float = before) -> None:
                note = f"October: {course.validation[-1]:.2f} minutes"
                progress.update(bar.id, completed=before + len(course.validation), note=note)

            checkpoint = results.checkpoint(key)
            model, course = fit(
                parts, training, validation.told, epochs=epochs, seed=seed, outages=share,
                checkpoint=checkpoint, ranks=ranks, after_epoch=after_epoch,
            )  # fmt: skip
            predicted = [predict(model, numbers, parts.test) for numbers in (test.told, test.silent)]
            results.add(key, _result(name, seed, share, start, predicted, parts, course))
            if checkpoint is not None and ranks.rank == 0:
                checkpoint.unlink()
        progress.update(bar.id, completed=before + epochs)
    return training


def _key(name: str, seed: int, share: float) -> str:
    return f"{name}, seed {seed}, outages {share}"


def _result(
    name: str,
    seed: int,
    share: float,
    start: float,
    predicted: Any,
    parts: Split,
    course: Course | None = None,
) -> dict[str, Any]:
    """Errors, in minutes, of predictions as things were told and without the weather."""
    told, silent = predicted
    month, points = parts.last_month, calibration(told, parts.test)
    last = parts.test[month.nonzero()[:, 0]]
    return {
        "model": name,
        "seed": seed,
        "outages": share,
        "seconds": time.process_time() - start,
        "test": asdict(errors(told, parts.test)),
        "December": asdict(errors(told[month], last)),
        "December without weather": asdict(errors(silent[month], last)),
        "calibration": points,
        "calibration error": calibration_error(points),
        "course": None if course is None else vars(course),
    }


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"), console=console,
    )  # fmt: skip
