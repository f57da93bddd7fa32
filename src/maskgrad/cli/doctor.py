"""``maskgrad doctor``: run a training script as it is, and say where its padding leaks."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskgrad.cli.doctor_ranks import Ranks
from maskgrad.errors import ExaminationError, MissingDependencyError
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from maskgrad.doctor import Report

__all__ = ["doctor"]

#: exit status if something was found, and if nothing can be said
FOUND, UNABLE = 1, 2


def doctor(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The training script; its own arguments follow.")],
    padding: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=MASK: the mask (True = real) of what the batch has under KEY. May be given again."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="How many training steps are watched.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Watch one step.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the script when these steps are over.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report to this file as one HTML page.")] = None,
) -> None:
    """Run a script while its first training steps are examined; exit status 1 if padding reaches what counts."""
    told = _told(padding)
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {str(script)!r}", param_hint="'SCRIPT'")
    try:
        require("rich", "maskgrad doctor", "cli")
    except MissingDependencyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(UNABLE) from None
    from maskgrad.doctor import Watch, watch

    ranks = Ranks()
    watched: Watch | None = None
    failed: BaseException | None = None
    steps = 1 if quick else steps
    with ranks.spared():
        try:
            with (
                ranks.running(),
                _progress(steps, shown=json is None and not ranks.rank) as progress,
                watch(told, steps=steps, stop=stop, progress=progress) as watched,
            ):
                _run(script, context.args)
        except ExaminationError as error:
            typer.echo(f"Error: {error}", err=True)
            failed = error
        except SystemExit as error:
            failed = error if error.code else None
            if isinstance(error.code, str):  # what Python itself would have printed
                typer.echo(error.code, err=True)
        except Exception as error:
            traceback.print_exception(type(error), error, error.__traceback__ and _own(error.__traceback__))
            failed = error
        assert watched is not None
        if ranks.rank:
            ranks.hand_over(watched.report, failed=failed is not None)
            raise typer.Exit(UNABLE if failed is not None else 0)
        report, incomplete = watched.report, failed is not None
        if ranks.size > 1:
            report, incomplete = ranks.collected(report, failed=incomplete)
        if not isinstance(failed, ExaminationError):
            _write(report, json, html)
        if incomplete:
            raise typer.Exit(UNABLE)
        if report.ok and not report.experiments:
            typer.echo(_nothing_seen(watched.unpadded), err=True)
            raise typer.Exit(UNABLE)
        if not report.ok:
            raise typer.Exit(FOUND)


@contextlib.contextmanager
def _progress(steps: int, *, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, of the steps that are watched, where somebody looks at it; it goes when they are over."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # what the script prints goes where it goes without us, and no thread of ours runs beside it
    options: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    with Progress(
        console=console, transient=True, disable=not (shown and console.is_terminal), **options
    ) as bar:
        task = bar.add_task("waiting for a batch", total=steps)

        def told(name: str, number: int, total: int) -> None:
            bar.update(task, description=name, completed=number, refresh=True)
            if number >= total:
                bar.stop()

        yield told


def _told(padding: list[str] | None) -> dict[Any, Any] | None:
    if not padding:
        return None
    told: dict[Any, Any] = {}
    for pair in padding:
        key, equals, mask = pair.partition("=")
        if not (key and equals and mask):
            raise typer.BadParameter(
                f"expected KEY=MASK, found {pair!r}; write --padding input_ids=attention_mask",
                param_hint="'--padding'",
            )
        told[_key(key)] = _key(mask)
    return told


def _key(text: str) -> Any:
    """Positions in a tuple are numbers."""
    return int(text) if text.isdigit() else text


def _run(script: Path, arguments: list[str]) -> None:
    """As ``python script arguments`` would."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path


def _own(trace: Any) -> Any:
    """The traceback from the script's first line on."""
    here = {__file__, runpy.__file__}
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in here or "runpy" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return trace


def _write(report: Report, json: Path | None, html: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    color = "green" if report.ok else "red"
    console.rule(f"[{color}]maskgrad doctor[/{color}]")
    # soft_wrap: a path and a line of code are copied as a whole
    console.print(escape(str(report)), soft_wrap=True, highlight=False)
    for path, write in ((json, report.to_json), (html, report.to_html)):
        if path is not None:
            try:
                write(path)
            except OSError as error:
                typer.echo(f"Error: cannot write {str(path)!r} ({error.strerror})", err=True)
                raise typer.Exit(UNABLE) from None


def _nothing_seen(unpadded: int) -> str:
    if unpadded:
        return (
            "Error: no padding was recognised in the batches of the script; name it with --padding KEY=MASK, such as "
            "--padding input_ids=attention_mask"
        )
    return "Error: the script ended without a backward pass; give the script that trains"
