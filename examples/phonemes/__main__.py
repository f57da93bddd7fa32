"""``python -m examples.phonemes``: options; ``run.py`` does the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from maskgrad.errors import MissingDependencyError

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def phonemes(
    steps: Annotated[
        int | None, typer.Option(min=3, help="Steps of training, for each way; 150 if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides the split and every random number.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 1,
    quick: Annotated[bool, typer.Option(help="Few words, four steps: seconds, and nothing learnt.")] = False,
    out: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for the numbers and the picture.")
    ] = Path("phonemes-report"),
) -> None:
    """Learn to say words from their spelling, on jagged batches and on padded ones."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        from .run import QUICK, Settings, run

        settings = QUICK if quick else Settings()
        run(replace(settings, seed=seed, threads=threads, steps=steps or settings.steps), out)
    except MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app(prog_name="python -m examples.phonemes")
