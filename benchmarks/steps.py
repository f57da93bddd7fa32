"""Seventeen whole training steps on two versions of maskgrad, side by side: ``make steps``.

The working tree is compared with the last tag, or with any commit (``--against``), whose source git writes to a
temporary folder. Before any clock starts, both versions must compute the same losses and gradients. Then each runs in
processes of its own, in turns, on one thread; the best median of all turns counts.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.report import bar_of
from benchmarks.step_programs import chosen

ROOT = Path(__file__).resolve().parent.parent
TURNS = 3
#: Times of the earlier version that a step may take: any, one on sparse rows, and the geometric mean of all.
LIMIT, ROWS_LIMIT, TOGETHER = 1.2, 1.05, 1.08
#: What two runs of one version differ by on a busy machine.
NOISE = 0.05
#: Differences by rounding: of losses; of gradients relative to the parameter's largest; and, as some gradients are 0
#: but for rounding (of a bias before batch norm), relative to the model's largest.
LOSS, GRADIENT, ZERO = 1e-3, 1e-3, 1e-6


def git(*arguments: str) -> str:
    """What git prints.

    Raises:
        SystemExit: it fails.
    """
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def last_tag() -> str:
    """The newest tag among the ancestors of the working tree's commit.

    Raises:
        SystemExit: there is none.
    """
    tags = git("tag", "--merged", "HEAD", "--sort=-creatordate").splitlines()
    if not tags:
        raise SystemExit(
            "this clone has no tag to compare with; name a commit: make steps ARGS='--against COMMIT'"
        )
    return tags[0]


def source_of(commit: str, folder: Path) -> Path:
    """``src`` as it was at ``commit``, written below ``folder``."""
    archive = folder / "src.tar"
    git(
        "archive",
        "--format=tar",
        f"--output={archive}",
        git("rev-parse", "--verify", f"{commit}^{{commit}}"),
        "src",
    )
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "src"


def run(source: Path, part: str, way: str) -> Iterator[dict[str, Any]]:
    """What the programs print on the maskgrad in ``source``, one line each."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.step_programs", part, way]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | one_thread | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            for line in map(json.loads, process.stdout or ()):
                if source.resolve() not in Path(line["maskgrad"]).resolve().parents:
                    raise SystemExit(f"the programs import {line['maskgrad']}, expected a file in {source}")
                yield line
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"a program fails with the maskgrad in {source}:\n{errors.read()[-1500:]}")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """How the losses and gradients of two versions differ, by more than rounding."""
    found = []
    for which, a, b in zip(("first", "last"), before["losses"], after["losses"], strict=True):
        if not math.isclose(a, b, rel_tol=LOSS, abs_tol=LOSS):
            found.append(f"the {which} loss is {b:.6g} and was {a:.6g}")
    old, new = (torch.load(result["gradients"], weights_only=True) for result in (before, after))
    if old.keys() != new.keys():
        return [*found, f"{sorted(old.keys() ^ new.keys())} have a gradient in one version only"]
    zero = ZERO * max(map(_largest, old.values()))
    texts = {name: _difference(new[name], gradient, zero) for name, gradient in old.items()}
    return [*found, *(f"the gradient of {name}: {text}" for name, text in texts.items() if text)]


def _difference(found: Tensor, expected: Tensor, zero: float) -> str:
    try:
        torch.testing.assert_close(found, expected, rtol=0, atol=GRADIENT * _largest(expected) + zero)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _largest(gradient: Tensor) -> float:
    return float(gradient.abs().max())


def check(before: Path, after: Path, part: str, done: Callable[[str], None]) -> None:
    """Compare losses and gradients of both versions.

    Raises:
        SystemExit: they differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        results: list[list[dict[str, Any]]] = []
        for source in (before, after):
            own = Path(folder) / str(len(results))
            own.mkdir()
            results.append([])
            for line in run(source, part, str(own)):
                results[-1].append(line)
                done(f"checked: {line['name']}, {'before' if source is before else 'after'}")
        wrong = [
            f"{old['name']}: {text}"
            for old, new in zip(*results, strict=True)
            for text in differences(old, new)
        ]
    if wrong:
        raise SystemExit("\n".join(["both versions must compute the same, and do not:", *wrong]))


def measured(
    before: Path, after: Path, part: str, turns: int, done: Callable[[str], None]
) -> dict[str, tuple[float, float]]:
    """The seconds of each program before and after."""
    found: dict[Path, dict[str, float]] = {before: {}, after: {}}
    for turn in range(turns):
        for source in (before, after) if turn % 2 == 0 else (after, before):
            for line in run(source, part, "time"):
                name, best = line["name"], found[source].get(line["name"], math.inf)
                found[source][name] = min(best, line["seconds"])
                done(f"turn {turn + 1}: {name}, {'before' if source is before else 'after'}")
    return {name: (found[before][name], found[after][name]) for name in found[before]}


def limit_of(name: str) -> float:
    """How many times as long as before a step may take."""
    return ROWS_LIMIT if name.startswith("rows") else LIMIT


def report(console: Console, times: dict[str, tuple[float, float]], against: str) -> bool:
    """Print a table and a summary; whether all goals are met."""
    table = Table(title=f"Training steps, {against} and the working tree", title_justify="left")
    table.add_column("step", no_wrap=True)
    for column in ("before (ms)", "after (ms)", "after / before"):
        table.add_column(column, justify="right")
    ratios = {name: after / before for name, (before, after) in times.items()}
    slow = [name for name, ratio in ratios.items() if ratio > limit_of(name) + NOISE]
    for name, (before, after) in times.items():
        style = "red" if name in slow else None
        table.add_row(name, f"{before * 1e3:.3g}", f"{after * 1e3:.3g}", f"{ratios[name]:.2f}", style=style)
    console.print(table)
    together = statistics.geometric_mean(ratios.values())
    console.print(
        f"{len(ratios) - len(slow)} of {len(ratios)} steps at their goal (at most {LIMIT} of the time before, "
        f"on sparse rows {ROWS_LIMIT}, and {NOISE} for noise); the geometric mean is {together:.2f} of the time before "
        f"(goal {TOGETHER})",
        highlight=False,
        soft_wrap=True,
    )
    return not slow and together <= TOGETHER


def main(
    part: Annotated[
        str, typer.Argument(help="Run the steps whose name contains this, such as 'encoder'.")
    ] = "",
    against: Annotated[
        str | None, typer.Option(help="The commit to compare with; the last tag if left out.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="How often each version runs.")] = TURNS,
) -> None:
    """Measure whole training steps on the working tree and on an earlier version."""
    names = chosen(part)
    if not names:
        raise SystemExit(f"no step contains {part!r}; leave it out to run all")
    against = against or last_tag()
    console = Console()
    bar = bar_of(console)
    with tempfile.TemporaryDirectory() as folder, bar:
        task = bar.add_task("checking", total=2 * len(names) * (turns + 1))

        def done(what: str) -> None:
            bar.update(task, advance=1, description=what)
            if not console.is_terminal:
                console.print(what, highlight=False, soft_wrap=True)

        before, after = source_of(against, Path(folder)), ROOT / "src"
        check(before, after, part, done)
        times = measured(before, after, part, turns, done)
    if not report(console, times, f"{against} ({git('rev-parse', '--short', against)})"):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
