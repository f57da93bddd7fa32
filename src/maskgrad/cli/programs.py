"""``maskgrad demo`` and ``maskgrad bench``: programs in the library's repository."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

import maskgrad

__all__ = ["PASSED_ON", "bench", "checkout", "demo"]

#: Options are passed on to the program.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

REPOSITORY = "https://github.com/maskgrad/maskgrad"
_HOW_TO_GET = (
    f"git clone {REPOSITORY} && cd maskgrad && pip install -e '.[{{extras}}]' && maskgrad {{command}}"
)


def checkout() -> Path | None:
    """Root of a checkout of maskgrad: the running one, else the current folder; None if neither is one."""
    for root in (Path(maskgrad.__file__).resolve().parents[2], Path.cwd()):
        project = root / "pyproject.toml"
        if project.is_file() and 'name = "maskgrad"' in project.read_text(encoding="utf-8"):
            return root
    return None


def demo(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Name of the program; lists all programs if omitted.")
    ] = None,
) -> None:
    """Run a program of the folder examples; for its options see `maskgrad demo movielens --help`."""
    root = _root_for("examples", "cli,plot,examples", "demo")
    found = {
        main.parent.name: main.parent / "__init__.py"
        for main in sorted((root / "examples").glob("*/__main__.py"))
    }
    if name is None:
        for program, about in found.items():
            typer.echo(f"maskgrad demo {program:12} {_first_line(about)}")
        return
    if name not in found:
        raise typer.BadParameter(
            f"unknown program {name!r}; choose one of {', '.join(found)}", param_hint="'NAME'"
        )
    _run(root, f"examples.{name}", context.args, f"maskgrad demo {name}")


def bench(context: typer.Context) -> None:
    """Measure operations, compared with torch.masked, plain PyTorch and others: `maskgrad bench --help`."""
    root = _root_for("benchmarks", "bench", "bench")
    _run(root, "benchmarks", context.args, "maskgrad bench")


def _root_for(folder: str, extras: str, command: str) -> Path:
    root = checkout()
    if root is not None and (root / folder).is_dir():
        return root
    how = _HOW_TO_GET.format(extras=extras, command=command)
    typer.echo(
        f"Error: the package contains the library only; the folder {folder} is in its repository: {how}",
        err=True,
    )
    raise typer.Exit(1)


def _run(root: Path, package: str, arguments: list[str], name: str) -> None:
    sys.path.insert(0, str(root))  # its subprocesses need it, too
    importlib.import_module(f"{package}.__main__").app(arguments, prog_name=name)


def _first_line(init: Path) -> str:
    return (ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "").partition("\n")[0]
