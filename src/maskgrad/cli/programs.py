"""``maskgrad demo`` and ``maskgrad bench``: programs that stand beside the library, in its repository."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

import maskgrad

__all__ = ["PASSED_ON", "bench", "checkout", "demo"]

#: Options are those of the program; ours would hide them.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

REPOSITORY = "https://github.com/maskgrad/maskgrad"
_HOW_TO_GET = (
    f"git clone {REPOSITORY} && cd maskgrad && pip install -e '.[{{extras}}]' && maskgrad {{command}}"
)


def checkout() -> Path | None:
    """The root of a checkout of maskgrad: the one that runs, else the current folder; None if neither is one."""
    for root in (Path(maskgrad.__file__).resolve().parents[2], Path.cwd()):
        project = root / "pyproject.toml"
        if project.is_file() and 'name = "maskgrad"' in project.read_text(encoding="utf-8"):
            return root
    return None


def demo(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which program; without it, they are listed.")] = None,
) -> None:
    """Run a program of the folder examples: `maskgrad demo movielens --help` says what it takes."""
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
            f"{name!r} is not among them; there are {', '.join(found)}", param_hint="'NAME'"
        )
    _run(root, f"examples.{name}", context.args, f"maskgrad demo {name}")


def bench(context: typer.Context) -> None:
    """Measure operations beside torch.masked, plain PyTorch and others: `maskgrad bench --help`."""
    root = _root_for("benchmarks", "bench", "bench")
    _run(root, "benchmarks", context.args, "maskgrad bench")


def _root_for(folder: str, extras: str, command: str) -> Path:
    root = checkout()
    if root is not None and (root / folder).is_dir():
        return root
    how = _HOW_TO_GET.format(extras=extras, command=command)
    typer.echo(
        f"Error: the package holds the library only; the folder {folder} is in its repository: {how}",
        err=True,
    )
    raise typer.Exit(1)


def _run(root: Path, package: str, arguments: list[str], name: str) -> None:
    sys.path.insert(0, str(root))  # processes that it starts need it, too
    importlib.import_module(f"{package}.__main__").app(arguments, prog_name=name)


def _first_line(init: Path) -> str:
    return (ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "").partition("\n")[0]
