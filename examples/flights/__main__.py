"""``python -m examples.flights``: trains, compares, reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

import maskgrad as mg

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def flights(
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training months, for each network.")
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Take one of so many flights.")] = 1,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for metrics.json, pictures, checkpoints.")
    ] = Path("flights-report"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoints in the folder.")
    ] = False,
) -> None:
    """Predict delays of flights from numbers of which many are missing, beside other ways to treat them."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        run(epochs, seed, every, out, resume)
    except mg.MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(f"Interrupted; go on with: --resume --out {out}", err=True)
        raise typer.Exit(130) from None


def run(epochs: int, seed: int, every: int, out: Path, resume: bool) -> None:
    """Load, train, compare, and write the report."""
    from rich.console import Console

    from .data import join, load_tables, split
    from .model import filled_with_means, with_indicators
    from .report import Report, calibration
    from .rivals import boosted_trees, mean_delay
    from .training import errors, fit, predict

    console = Console()
    tables = load_tables()
    parts = split(join(**tables | {"flights": tables["flights"].iloc[::every]}))
    console.print(
        f"{len(parts.training):,} flights to learn from, {len(parts.validation):,} to choose by, "
        f"{len(parts.test):,} to predict; "
        f"{1 - parts.training.numbers.mask.float().mean():.1%} of the numbers are missing."
    )
    report = Report()
    report.errors["mean of training"] = errors(mean_delay(parts), parts.test)
    treatments = {
        "masked": lambda numbers: numbers,
        "filled with means": filled_with_means,
        "means and indicators": with_indicators,
    }
    for name, treat in treatments.items():
        checkpoint = out / f"{name.replace(' ', '_')}.pt"
        if not resume:
            checkpoint.unlink(missing_ok=True)
        start = time.perf_counter()
        model, report.histories[name] = fit(parts, treat, epochs, seed, checkpoint)
        report.seconds[name] = time.perf_counter() - start
        predicted = predict(model, treat, parts.test)
        report.errors[name] = errors(predicted, parts.test)
        report.calibrated[name] = calibration(predicted, parts.test)
        console.print(f"{name}: {report.errors[name].rmse:.2f} minutes")
    start = time.perf_counter()
    trees = boosted_trees(parts, seed)
    if trees is None:
        console.print("without boosted trees: pip install scikit-learn")
    else:
        report.seconds["boosted trees"] = time.perf_counter() - start
        report.errors["boosted trees"] = errors(trees, parts.test)
        report.calibrated["boosted trees"] = calibration(trees, parts.test)
    report.show(console)
    console.print("Report: " + ", ".join(map(str, report.write(out, parts))), soft_wrap=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a step is small: a second thread waits more than it works
    app(prog_name="python -m examples.flights")
