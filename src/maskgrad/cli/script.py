"""A script or a module that runs as Python itself runs it, and how it ended."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

__all__ = ["check_program", "ending", "exits_reported", "run"]


def check_program(name: str, *, module: bool) -> None:
    """Raise BadParameter for what Python does not run, and for other files than scripts: JSON would run as one."""
    if module:
        problem = "" if _is_module(name) else f"there is no module {name!r} in the folder {os.getcwd()!r}"
        instead = "maskgrad doctor -m package.train"
    else:
        problem = "" if Path(name).suffix in ("", ".py", ".pyw") else f"expected a script, found {name!r}"
        problem = problem if Path(name).is_file() else f"there is no file {name!r}"
        instead = "maskgrad doctor train.py"
        if name.endswith(".ipynb"):
            instead = "with mg.doctor.watch() as watched: in the cell that trains, then print(watched.report)"
    if problem:
        raise typer.BadParameter(f"{problem}; for example: {instead}", param_hint="'SCRIPT'")


def _is_module(name: str) -> bool:
    with mock.patch.object(sys, "path", [os.getcwd(), *sys.path]):
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False


def run(name: str, arguments: list[str], *, module: bool) -> None:
    """Run as ``python name arguments``, or ``python -m name arguments``."""
    first = os.getcwd() if module else str(Path(name).resolve().parent)
    with (
        mock.patch.object(sys, "argv", [name, *arguments]),
        mock.patch.object(sys, "path", [first, *sys.path]),
    ):
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")


@contextlib.contextmanager
def exits_reported(report: Callable[[int], int]) -> Iterator[None]:
    """Inside, ``os._exit`` of this process first calls ``report``, and exits with its result; children just end."""
    own, leave = os.getpid(), os._exit

    def leave_with_report(status: int) -> None:
        if os.getpid() == own:
            status = report(status)
            sys.stdout.flush()
        leave(status)

    with mock.patch.object(os, "_exit", leave_with_report):
        yield


def ending(error: BaseException) -> str:
    """How a program ended, if not at its last line; what Python would print is printed."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            typer.echo(error.code, err=True)
        return (
            f"ended with exit status {error.code if isinstance(error.code, int) else 1}" if error.code else ""
        )
    traceback.print_exception(type(error), error, _own(error.__traceback__))
    return f"ended with {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _own(trace: Any) -> Any:
    """The traceback from the program's first line on."""
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__
        or trace.tb_frame.f_globals.get("__name__") in ("runpy", "maskgrad.cli.doctor")
    ):
        trace = trace.tb_next
    return trace
