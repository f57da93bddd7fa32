"""``python -m examples.movielens``: options, checked before any work begins; ``run.py`` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from maskgrad.errors import MissingDependencyError

__all__ = ["app"]

#: what a shell reports for a program that Ctrl-C ended: 128 + SIGINT
INTERRUPTED = 130

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def movielens(
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training ratings, for each model.")
    ] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Decides the split and every random number.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, ...")] = "cpu",
    out: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for metrics.json and the pictures.")
    ] = Path("demo-report"),
    nproc: Annotated[
        int, typer.Option(min=1, help="Processes that share every batch; the results stay the same.")
    ] = 1,
) -> None:
    """Train two recommenders on MovieLens, a matrix of ratings of which 98.4 % is missing."""
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise typer.BadParameter(str(error), param_hint="'--device'") from None
    if nproc > 1 and where.type != "cpu":
        raise typer.BadParameter(
            f"{nproc} processes would share {device}; take --device cpu, or one process.",
            param_hint="'--nproc'",
        )
    out.mkdir(parents=True, exist_ok=True)

    # torch's optimizers, rich and matplotlib take a second to load; `--help` need not wait for them.
    try:
        from .run import Settings, run

        complete = run(Settings(epochs=epochs, seed=seed, device=where, out=out, processes=nproc))
    except MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    if not complete:
        raise typer.Exit(INTERRUPTED)


if __name__ == "__main__":
    app(prog_name="python -m examples.movielens")
