"""``python -m benchmarks``: how long operations take on this machine, beside other ways to do the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

__all__ = ["app", "bench"]

#: what a shell reports for a program that Ctrl-C ended: 128 + SIGINT
INTERRUPTED = 130

T = TypeVar("T")

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def bench(
    families: Annotated[str | None, typer.Option(help="Comma-separated families: reductions,updates")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes and few repetitions: less than a minute.")
    ] = False,
    sizes: Annotated[str | None, typer.Option(help="Comma-separated sizes; --list explains them.")] = None,
    densities: Annotated[str | None, typer.Option(help="Comma-separated densities: 0.1,0.5")] = None,
    dtypes: Annotated[str | None, typer.Option(help="Comma-separated dtypes: float32,bfloat16")] = None,
    peers: Annotated[str | None, typer.Option(help="Comma-separated baselines; --list shows them.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of threads for PyTorch and maskgrad.")
    ] = None,
    out: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for the CSV files and the pictures.")
    ] = Path("benchmark-report"),
    list_: Annotated[
        bool, typer.Option("--list", help="List what can be measured, without measuring.")
    ] = False,
) -> None:
    """Measure operations, compared with torch.masked, plain PyTorch and others; checks results before timing."""
    wanted = {
        "families": _split(families, "families", str, "names"),
        "sizes": _split(sizes, "sizes", int, "whole numbers"),
        "densities": _split(densities, "densities", float, "numbers"),
        "dtypes": _split(dtypes, "dtypes", str, "names"),
        "peers": _split(peers, "peers", str, "names"),
    }

    # torch and rich take a second to load; `--help` need not wait for them.
    import torch
    from rich.console import Console

    from benchmarks import report
    from benchmarks.families import FAMILIES
    from benchmarks.plan import Plan, UnknownNameError
    from benchmarks.runner import run

    console = Console()
    if list_:
        report.print_list(console, FAMILIES)
        return
    plan = Plan(**wanted, quick=quick)  # type: ignore[arg-type]
    try:
        cases = sum(len(plan.cases(family)) for family in plan.chosen(FAMILIES))
    except UnknownNameError as error:
        raise typer.BadParameter(str(error), param_hint=f"'--{error.option}'") from None
    if not cases:
        raise typer.BadParameter(
            f"none of the families is measured with {dtypes}; --list says which dtypes each has",
            param_hint="'--dtypes'",
        )
    out.mkdir(parents=True, exist_ok=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with report.Progress(console, cases) as progress:
            outcome = run(plan, FAMILIES, out, progress)
    finally:
        torch.set_num_threads(before)
    report.print_outcome(console, outcome)
    report.draw_pictures(console, out)
    if outcome.failures:
        raise typer.Exit(1)
    if outcome.interrupted:
        raise typer.Exit(INTERRUPTED)


def _split(text: str | None, option: str, kind: Callable[[str], T], what: str) -> list[T] | None:
    """The parts of a list with commas; empty parts do not count."""
    if text is None:
        return None
    try:
        return [kind(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(
            f"expected comma-separated {what}, got {text!r}", param_hint=f"'--{option}'"
        ) from None


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
