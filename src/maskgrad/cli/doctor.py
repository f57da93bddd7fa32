"""``maskgrad doctor``: run an unchanged training script, and report where its padding leaks."""

from __future__ import annotations

import contextlib
import json as json_files
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskgrad.errors import ExaminationError

if TYPE_CHECKING:
    from maskgrad.doctor import Report

__all__ = ["Ranks", "doctor"]

#: exit status by verdict; the last also without a result
STATUS = {"ok": 0, "found": 1, "incomplete": 2}
UNABLE = STATUS["incomplete"]
#: how long rank 0 waits for the reports of other ranks, which have run the same steps
PATIENCE_S = 60.0
#: the same after torchrun ends all ranks because one has failed: their reports come soon
GRACE_S = 2.0


def doctor(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The training script; its own arguments follow.")],
    padding: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=MASK: the mask (True = real; ~MASK: True = padding) or the lengths of the batch's "
            "KEY; KEY==0: padded with the id 0. May be repeated."
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="The model's argument with the document of each token; usual names are recognised."
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Later positions must not reach earlier ones.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps to examine.")] = 2,
    blame: Annotated[
        str,
        typer.Option(
            help="For faults in a package's model: report the line of the 'program', or of the 'package'."
        ),
    ] = "program",
    quick: Annotated[bool, typer.Option("--quick", help="Examine one step.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the script after these steps.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report to this file as one HTML page.")] = None,
) -> None:
    """Run a script and examine its first training steps; exit status 1 on findings, 2 if not all was examined."""
    given, ranks = _given(padding), Ranks()
    if blame not in ("program", "package"):
        raise typer.BadParameter(f"expected program or package, found {blame!r}", param_hint="'--blame'")
    _check_script(script)
    if not ranks.rank:  # the one that writes
        for option, path in (("--json", json), ("--html", html)):
            _check_report(option, path)
    from maskgrad.doctor import Watch, watch

    watched: Watch | None = None
    failed: BaseException | None = None
    steps = 1 if quick else steps
    with ranks.spared():
        try:
            with (
                ranks.running(),
                _progress(steps, shown=json is None and not ranks.rank) as progress,
                watch(
                    given,
                    documents=documents,
                    causal=causal,
                    steps=steps,
                    stop=stop,
                    blame=blame,
                    progress=progress,
                ) as watched,
            ):
                _run(script, context.args)
        except ExaminationError as error:
            typer.echo(f"Error: {error}", err=True)
            failed = error
        except SystemExit as error:
            failed = error if error.code else None
            if isinstance(error.code, str):  # as printed by Python itself
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
            _write(report, json, html, failed=incomplete)
        if not incomplete and report.unexamined:
            message = "the script ended without a backward pass; pass the training script"
            if watched.unpadded:
                message = (
                    "no padding was recognised in the batches of the script; pass --padding KEY=MASK, such as "
                    "--padding input_ids=attention_mask"
                )
            typer.echo(f"Error: {message}", err=True)
        raise typer.Exit(UNABLE if incomplete else STATUS[report.verdict])


@contextlib.contextmanager
def _progress(steps: int, *, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar of the examined steps on stderr, if it is a terminal; removed at the end."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # the script's output is not redirected, and no extra thread runs
    options: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    with Progress(
        console=console, transient=True, disable=not (shown and console.is_terminal), **options
    ) as bar:
        task = bar.add_task("waiting for a batch", total=steps)

        def show(name: str, number: int, total: int) -> None:
            bar.update(task, description=name, completed=number, refresh=True)
            if number >= total:
                bar.stop()

        yield show


def _check_script(script: Path) -> None:
    """Raise BadParameter for files other than Python scripts; JSON would run as one."""
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {str(script)!r}", param_hint="'SCRIPT'")
    if script.suffix not in ("", ".py", ".pyw"):
        raise typer.BadParameter(
            f"expected a Python script, found {str(script)!r}; for example: maskgrad doctor train.py",
            param_hint="'SCRIPT'",
        )


def _check_report(option: str, path: Path | None) -> None:
    """Raise BadParameter, before the script runs, if the report cannot be written."""
    if path is None:
        return
    folder, problem = path.parent, ""
    if not folder.is_dir():
        problem = f"there is no folder {str(folder)!r}"
    elif path.is_dir():
        problem = f"{str(path)!r} is a folder"
    elif path.suffix == ".py":
        problem = f"{str(path)!r} is the name of a script"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = f"{str(path)!r} may not be written"
    if problem:
        kind = option.removeprefix("--")
        raise typer.BadParameter(f"{problem}; for example: {option} report.{kind}", param_hint=f"'{option}'")


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


def _run(script: Path, arguments: list[str]) -> None:
    """Run as ``python script arguments``."""
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


def _write(report: Report, json: Path | None, html: Path | None, *, failed: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    color = "green" if report.ok and not failed else "red"
    console.rule(f"[{color}]maskgrad doctor[/{color}]")
    if failed:
        console.print("the script failed; until then:", highlight=False)
    # soft_wrap: a path and a line of code are copied as a whole
    console.print(escape(str(report)), soft_wrap=True, highlight=False)
    for path, write in ((json, report.to_json), (html, report.to_html)):
        if path is not None:
            try:
                write(path)
            except OSError as error:
                typer.echo(f"Error: cannot write {str(path)!r} ({error.strerror})", err=True)
                raise typer.Exit(UNABLE) from None


class Ranks:
    """The processes started by torchrun on this machine; only this one without torchrun."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.size)))
        self._running = self._ends = False

    def hand_over(self, report: Report, *, failed: bool) -> None:
        """Pass the report to rank 0."""
        path = self._folder() / f"{self.rank}.json"
        part = path.with_suffix(".part")  # readers see complete files only
        part.write_text(json_files.dumps({"failed": failed, **report.as_dict()}), encoding="utf-8")
        part.replace(path)

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """On rank 0: if another rank fails, torchrun ends this one, too; end the program then, but not the report."""
        if self.rank or self.size == 1:
            yield
            return
        before = signal.signal(signal.SIGTERM, self._end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: object) -> None:  # noqa: ARG002
        """End the program or the wait the first time, the process the second time."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._ends = True
        if self._running:
            raise SystemExit(128 + number)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the program runs."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def collected(self, report: Report, *, failed: bool) -> tuple[Report, bool]:
        """On rank 0: the report of all ranks, and whether the program failed on any of them."""
        from maskgrad.doctor import Note, Report
        from maskgrad.doctor.ranks import united

        folder, others = self._folder(), range(1, self._local)
        patience_s = 5.0 if failed else PATIENCE_S  # after a failure the rest ends soon, or never
        until = time.monotonic() + patience_s
        while not all((folder / f"{rank}.json").exists() for rank in others) and time.monotonic() < until:
            time.sleep(0.05)
            if self._ends:
                until = min(until, time.monotonic() + GRACE_S)
                self._ends = False
        reports, silent = {0: report}, []
        for rank in range(1, self.size):
            try:
                plain: dict[str, Any] = json_files.loads(
                    (folder / f"{rank}.json").read_text(encoding="utf-8")
                )
            except FileNotFoundError:
                silent.append(rank)
                continue
            failed |= plain["failed"]
            reports[rank] = Report.from_dict(plain)
        shutil.rmtree(folder, ignore_errors=True)
        whole = united(reports)
        if silent:
            whole.note(
                Note(
                    "ranks",
                    f"no report came from rank {', '.join(map(str, silent))}: they run on other machines, or did not "
                    f"end within {patience_s:.0f} s, or before this rank had to end",
                )
            )
        return whole, failed

    def _folder(self) -> Path:
        """One folder for each run of torchrun, and for each restart of its processes; private to this user."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        run = "-".join(os.environ.get(name, "") for name in names)
        run = "".join(letter if letter.isalnum() else "-" for letter in run)
        owner = os.getuid() if hasattr(os, "getuid") else 0
        folder = Path(tempfile.gettempdir()) / f"maskgrad-doctor-{owner}-{run}-{os.getppid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != owner:
            raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
        return folder
