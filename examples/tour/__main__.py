"""``python -m examples.tour``: five parts, a screen and pictures; nothing on it was measured before."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from .part import Part

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def tour(
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long each recommender is trained; there are ten.")
    ] = 4.0,
    quick: Annotated[bool, typer.Option(help="Everything small: seconds, and nothing learnt.")] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="The long way: tables and pictures of five parts, in two and a half minutes."
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for tour.json and the pictures.")
    ] = Path("tour-report"),
) -> None:
    """What masks and sparse gradients change, measured now: errors, NaN, speed, and a leak that is found."""
    out.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    try:
        require("matplotlib", "the tour", "plot")
        # said, or PyTorch's Adagrad warns that nobody said it
        torch.sparse.check_sparse_tensor_invariants.disable()
        torch.set_num_threads(1)  # steps are small: a second thread waits more than it works
        if everything:
            _run(seed, seconds, quick, out)
        else:
            _screen(seed, quick, out)
    except MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        torch.set_num_threads(threads)


def _parts(seed: int, seconds: float, quick: bool) -> Iterator[Part]:
    from . import leak, lengths, missing, nan, table

    if quick:
        yield from missing.measure(seed, 0.05, movies=300)
        yield nan.measure(seed, steps=5)
        yield lengths.measure(seed, steps=4, words=3000)
        yield table.measure(seed, steps=4, rows=5000)
    else:
        yield from missing.measure(seed, seconds)
        yield nan.measure(seed)
        yield lengths.measure(seed)
        yield table.measure(seed)
    yield leak.measure()


def _screen(seed: int, quick: bool, out: Path) -> None:
    from rich.console import Console

    from maskgrad.plot.canvas import figure

    from . import screen

    console, start = Console(), time.perf_counter()
    for line in screen.lines(screen.parts(seed, quick=quick)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    drawn = figure(9, 3.8)
    title = screen.picture(drawn.subplots(), quick=quick)
    drawn.suptitle(textwrap.fill(title, 100), fontsize=11, x=0.02, ha="left")
    drawn.savefig(out / "everyday.png")
    console.print(
        f"{time.perf_counter() - start:.0f} s, one thread. Picture: {out}/everyday.png; the long way: --all",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _run(seed: int, seconds: float, quick: bool, out: Path) -> None:
    from rich.console import Console

    from maskgrad.plot.canvas import figure

    console, start, written = Console(), time.perf_counter(), {}
    for part in _parts(seed, seconds, quick):
        console.print(part.table())
        for remark in part.remarks:
            console.print(remark)
        written[part.name] = {"finding": part.finding, "rows": part.rows}
        if part.draw is not None:
            picture = figure(9, 3.8)
            axes = picture.subplots()
            part.draw(axes)
            # after the drawing: its legend stays below the title
            picture.suptitle(textwrap.fill(part.finding, 100), fontsize=11, x=0.02, ha="left")
            picture.savefig(out / f"{part.name}.png")
    (out / "tour.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    console.print(
        f"{time.perf_counter() - start:.0f} s, one thread. Report and pictures: {out}/", soft_wrap=True
    )


if __name__ == "__main__":
    app(prog_name="python -m examples.tour")
