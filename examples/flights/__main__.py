"""``python -m examples.flights``: options; ``run.py`` does the work. ``torchrun`` shares it among processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def flights(
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training months, for each network.")
    ] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="How often each model is trained: seeds 0, 1, …")] = 3,
    every: Annotated[int, typer.Option(min=1, help="Take one of so many flights.")] = 1,
    out: Annotated[
        Path,
        typer.Option(file_okay=False, writable=True, help="Folder for metrics.json, pictures, checkpoints."),
    ] = Path("flights-report"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what is in the folder, from the last epoch.")
    ] = False,
) -> None:
    """Predict delays of flights from numbers of which many are missing, beside other ways to treat them."""
    out.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a step is small: a second thread waits more than it works
    try:
        require("matplotlib", "the flights program", "plot")
        require("sklearn", "the flights program", "examples")
        from .ranks import joined
        from .run import Settings, run

        with joined() as ranks:
            run(Settings(epochs, seeds, every), out, resume, ranks)
    except (MissingDependencyError, ValueError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("Interrupted; go on with the same command and --resume", err=True)
        raise typer.Exit(130) from None
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    app(prog_name="python -m examples.flights")
