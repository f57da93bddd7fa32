"""``maskgrad doctor``: run an unchanged training script, and report where its padding leaks."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TextColumn
from rich.syntax import Syntax
from rich.text import Text

from maskgrad.cli.script import check_program, ending, exits_reported, run
from maskgrad.doctor import Report, Watch, watch
from maskgrad.errors import ExaminationError

__all__ = ["as_options", "doctor"]

#: exit status by verdict; the last also without a result
STATUS = {"ok": 0, "found": 1, "incomplete": 2}
UNABLE = STATUS["incomplete"]


def _no_script(path: Path | None) -> Path | None:
    """A report is not written over a script."""
    if path is not None and path.suffix == ".py":
        raise typer.BadParameter(f"{str(path)!r} is the name of a script; write for example report.json")
    return path


_WORDS = TextColumn("maskgrad doctor: {task.description}", markup=False)
#: on stderr; the script's own output is not redirected, and no thread is there when its process is forked
_LINE: dict[str, Any] = {"console": Console(stderr=True), "transient": True, "auto_refresh": False}
_LINE |= {"redirect_stdout": False, "redirect_stderr": False}
_FILE: dict[str, Any] = {"dir_okay": False, "writable": True, "callback": _no_script}


def doctor(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script; its own arguments follow.")],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False,
    padding: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=MASK: the mask (True = real; ~MASK: True = padding) or the lengths of the batch's "
            "KEY; KEY==0: padded with the id 0. May be repeated."
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(help="The model's argument with the document of each token, if not recognised."),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Later positions must reach no earlier one.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=2, help="Compare so many ranks with one.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps to examine.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Examine one step, with other values only.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Let the script run on after it.")] = False,
    data: Annotated[
        Path | None, typer.Option("--json", **_FILE, help="Write the report to this file as JSON.")
    ] = None,
    html: Annotated[Path | None, typer.Option(**_FILE, help="Write it to this file as a page.")] = None,
) -> None:
    """Run a script until its first steps are examined; exit status 1 if padding affects results, 2 if unknown."""
    given = _given(padding)
    check_program(script, module=module)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        typer.echo("Error: several ranks cannot be watched; run one, torchrun --nproc-per-node=1", err=True)
        raise typer.Exit(UNABLE)
    watched: Watch | None = None
    threads, steps = set(threading.enumerate()), 1 if quick else steps

    def reported(how: str) -> int:
        """Write the report; the exit status."""
        assert watched is not None
        watched.close(how)
        if ranks and "ranks" not in [each.name for each in watched.report.experiments]:
            watched.report.skip(
                "ranks", "no step was run on ranks", "a step after the first, on CPUs under Linux"
            )
        return _write(watched.report, data, html)

    ended = ""
    options: Any = {"stop": not keep_going, "documents": documents, "causal": causal, "steps": steps}
    world: Any = contextlib.nullcontext()
    if ranks:  # which need a PyTorch with torch.distributed
        world = importlib.import_module("maskgrad.simulated_ranks").in_scripts(ranks)
    try:
        with (
            world,
            Progress(_WORDS, disable=keep_going or not sys.stderr.isatty(), **_LINE) as line,
            exits_reported(lambda status: reported(f"called os._exit({status})")),
            watch(given, **options, progress=_shown(line)) as watched,
        ):
            run(script, context.args, module=module)
    except ExaminationError as error:  # an option that does not fit
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(UNABLE) from None
    except BaseException as error:
        ended = ending(error)
    status = reported(ended)
    if any(not thread.daemon for thread in set(threading.enumerate()) - threads):
        sys.stdout.flush()
        os._exit(status)  # the program was stopped, and would have ended these
    raise typer.Exit(status)


def _shown(line: Progress) -> Callable[[str], None]:
    """Show an experiment: in one line that changes on a terminal, elsewhere in a line of its own on stderr."""
    task = line.add_task("waiting for the first step")

    def show(words: str) -> None:
        if line.disable:
            typer.echo(f"maskgrad doctor: {words}", err=True)
        else:
            line.update(task, description=words, refresh=True)

    return show


def _given(padding: list[str] | None) -> dict[Any, Any] | None:
    given: dict[Any, Any] = {}
    for pair in padding or []:
        key, equal, mask = pair.partition("==")
        if equal and mask.lstrip("-").isdigit():
            given[int(key) if key.isdigit() else key] = int(mask)
            continue
        key, _, mask = pair.partition("=")
        if not (key and mask):
            raise typer.BadParameter(
                f"expected KEY=MASK, found {pair!r}; for example: --padding input_ids=attention_mask, or "
                "--padding input_ids==0",
                param_hint="'--padding'",
            )
        # positions in a tuple are ints
        name, of = (int(text) if text.isdigit() else text for text in (key, mask))
        given[name] = of
    return given or None


def as_options(text: str) -> str:
    """A text in which what is to be added is as on the command line: ``padding={'x': 0}`` is ``--padding x==0``."""

    def written(found: re.Match[str]) -> str:
        _, key, mask, number = found.groups()
        return f"--padding {key}=={number}" if number else f"--padding {key}={mask or 'mask'}"

    return re.sub(r"padding=\{('?)([\w.]+)\1: (?:'(~?[\w.]+)'|(-?\d+)|mask)\}", written, text)


def _write(report: Report, data: Path | None, html: Path | None) -> int:
    """Print the report, and write it to the files that were asked for; the exit status."""
    console = Console()
    color = {"ok": "green", "found": "red", "incomplete": "yellow"}[report.verdict]
    console.rule(f"[{color}]maskgrad doctor[/{color}]")
    # soft_wrap: a path and a line of code are copied as a whole
    console.print(escape(as_options(str(report))), soft_wrap=True, highlight=False)
    for path in filter(None, (data, html)):
        text = json.dumps(report.as_dict(), indent=2) if path is data else _page(report)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip() + "\n", encoding="utf-8")
        except OSError as error:
            typer.echo(f"Error: cannot write {str(path)!r} ({error.strerror})", err=True)
            return UNABLE
    return STATUS[report.verdict]


def _page(report: Report) -> str:
    """The text of the report as HTML, with the lines of the program around each finding."""
    console = Console(record=True, file=io.StringIO(), width=160)
    console.print(Text(as_options(str(report))), soft_wrap=True)
    for file in dict.fromkeys(finding.file for finding in report.findings if finding.file):
        lines = {finding.line for finding in report.findings if finding.file == file}
        shown = (max(1, min(lines) - 5), max(lines) + 5)
        console.print(Text(f"\n{file}"), soft_wrap=True)
        code = "".join(linecache.getlines(file))
        console.print(Syntax(code, "python", line_numbers=True, line_range=shown, highlight_lines=lines))
    return console.export_html(inline_styles=True)
