"""``python -m examples.finetune``: options; ``run.py`` does the work."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def finetune(
    seed: Annotated[int, typer.Option(min=0, help="Decides words, order and parameters.")] = 0,
    quick: Annotated[bool, typer.Option(help="Few words, three steps: seconds, and nothing learnt.")] = False,
    out: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for the numbers and the picture.")
    ] = Path("finetune-report"),
) -> None:
    """Learn which syllable is stressed, with a Hugging Face encoder and accumulated gradients."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        require("transformers", "the example", "ecosystem")
        if importlib.util.find_spec("accelerate") is None:  # or the Trainer says so after the training
            raise MissingDependencyError("accelerate", "ecosystem", "the Trainer of Hugging Face")
        from .run import QUICK, Settings, run

        run(replace(QUICK if quick else Settings(), seed=seed), out)
    except MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app(prog_name="python -m examples.finetune")
