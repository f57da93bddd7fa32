"""The laws as a command: test types of masked tensors, and print a table."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.progress import track

from tests.laws.any_type.adapter import Adapter
from tests.laws.any_type.judging import Status, Verdict, calls_of, judge
from tests.laws.any_type.operator_database import ENTRIES, Entry
from tests.laws.any_type.samples import OWN

__all__ = ["app", "laws"]

#: exit status if a law is broken
BROKEN = 1
#: Two kinds of garbage, one of them ordinary: 0 times NaN is the same as 0 times infinity.
QUICK = OWN._replace(thinned=True, garbage=("ordinary", "nan"))
#: Maximum number of broken operations printed for each type.
LISTED = 10
#: The family of entries without a record in maskgrad, as they have no meaning on incomplete data.
OTHERS = "others"
STATUSES: tuple[Status, ...] = ("supported", "values only", "refused", "broken")

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)

#: Verdicts of the laws for each entry, for each type by name.
Verdicts = dict[str, list[tuple[Entry, Verdict]]]


@app.command()
def laws(
    adapters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODULE:FACTORY]…",
            help="Functions without arguments that return an Adapter.",
            show_default=False,
        ),
    ] = None,
    family: Annotated[list[str] | None, typer.Option(help="Test this family only. May be repeated.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer samples, masks and kinds of garbage.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file, too.")] = None,
) -> None:
    """Test a type of masked tensors with the three laws, on all of PyTorch's operators; exit status 1 if one is broken.

    By default maskgrad's own type.
    """
    paths = adapters or ["tests.laws.any_type.adapters:maskgrad"]
    kinds = {path.rpartition(":")[2]: _adapter(path) for path in paths}
    entries = _entries(family or [])
    effort = QUICK if quick else OWN
    verdicts: Verdicts = {name: [] for name in kinds}
    progress = Console(stderr=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes warn with each tensor
        for entry in track(
            entries, "judging", console=progress, transient=True, disable=not progress.is_terminal
        ):
            calls = calls_of(entry, effort)
            for name, adapter in kinds.items():
                verdicts[name].append((entry, judge(entry, calls, adapter, effort)))
    console = Console(highlight=False)
    for name, found in verdicts.items():
        console.print(name, Markdown("\n".join(_table({name: found}))))
        broken = _broken(found)
        for line in broken[:LISTED]:
            console.print(f"[red]{escape(name)}[/]: {escape(line)}", soft_wrap=True)
        if len(broken) > LISTED:
            console.print(f"… and {len(broken) - LISTED} more of {escape(name)}")
    if markdown is not None:
        options = [*paths, *(f"--family {name}" for name in family or []), *(["--quick"] if quick else [])]
        markdown.write_text(_page(verdicts, options, markdown), encoding="utf-8")
    if any(_broken(found) for found in verdicts.values()):
        raise typer.Exit(BROKEN)


def _adapter(path: str) -> Adapter:
    module, _, name = path.partition(":")
    remedy = "pass module:factory, such as tests.laws.any_type.adapters:torch_masked"
    try:
        adapter = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(
            f"{path!r} is not an adapter ({error}); {remedy}", param_hint="'MODULE:FACTORY'"
        ) from None
    if not isinstance(adapter, Adapter):
        raise typer.BadParameter(
            f"{path!r} returns a {type(adapter).__name__}, not an Adapter; {remedy}",
            param_hint="'MODULE:FACTORY'",
        )
    return adapter


def _entries(families: Sequence[str]) -> list[Entry]:
    """Entries that apply to masked tensors, ordered by family."""
    entries = sorted((entry for entry in ENTRIES if not entry.outside), key=_family)
    known = dict.fromkeys(map(_family, entries))
    for name in families:
        if name not in known:
            raise typer.BadParameter(
                f"unknown {name!r}; choose one of {', '.join(known)}", param_hint="'--family'"
            )
    return [entry for entry in entries if not families or _family(entry) in families]


def _family(entry: Entry) -> str:
    return entry.operation.family if entry.operation else OTHERS


def _broken(found: list[tuple[Entry, Verdict]]) -> list[str]:
    return [f"{entry.id} ({v.law}): {v.case}" for entry, v in found if v.status == "broken"]


def _rows(verdicts: Verdicts) -> list[list[str]]:
    """The head, a row for each family, and totals; empty statuses are omitted."""
    counts = {
        name: Counter((_family(entry), v.status) for entry, v in found) for name, found in verdicts.items()
    }
    columns = [
        (name, status)
        for name, found in verdicts.items()
        for status in STATUSES
        if status != "values only" or any(v.status == status for _, v in found)
    ]
    families = dict.fromkeys(_family(entry) for found in verdicts.values() for entry, _ in found)
    totals = [sum(counts[name][family, status] for family in families) for name, status in columns]
    return [
        ["family", *(f"{name}: {status}" if len(verdicts) > 1 else status for name, status in columns)],
        *(
            [family, *(str(counts[name][family, status] or "") for name, status in columns)]
            for family in families
        ),
        ["total", *map(str, totals)],
    ]


def _table(verdicts: Verdicts) -> list[str]:
    names, *rows = _rows(verdicts)
    rule = "|".join(["", " --- ", *(" ---: " for _ in names[1:]), ""])
    head, *lines = ["| " + " | ".join(row) + " |" for row in (names, *rows)]
    return [head, rule, *lines]


def _page(verdicts: Verdicts, options: Sequence[str], path: Path) -> str:
    command = " ".join(["python -m tests.laws", *options, "--markdown", path.as_posix()])
    version = torch.__version__.partition("+")[0]
    lines = [f"Written by `{command}` on PyTorch {version}.", "", *_table(verdicts)]
    for name, found in verdicts.items():
        if broken := _broken(found):
            lines += ["", f"Broken by {name}:", "", *(f"- {line}" for line in broken)]
    return "\n".join(lines) + "\n"
