"""``maskgrad info``: information for bug reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["info"]


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    install: Annotated[
        bool,
        typer.Option("--install", help="Import and adapt the packages found, to check that this works."),
    ] = False,
) -> None:
    """Show versions, kernels in use, patches of PyTorch and other packages, devices and threads."""
    from maskgrad.cli.environment import environment  # imports torch, which --help does not need

    facts = environment(install)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    installed = {name: version for name, version in facts["versions"].items() if version is not None}
    absent = [name for name, version in facts["versions"].items() if version is None]
    console.print(_table("Versions", installed))
    if absent:
        console.print(f"not installed: {', '.join(absent)}\n")
    for device, kernels in facts["kernels"].items():
        console.print(_table(f"Kernels for large tensors on {device}", _by_body(kernels)))
    console.print(_patches(facts["patches"]))
    console.print(_table("Other packages: mg.integrations.install", _by_package(facts["integrations"])))
    console.print(_table("Devices", facts["devices"]))
    console.print(_table("Threads", facts["threads"]))


def _table(title: str, rows: dict[str, Any]) -> Table:
    table = _empty(title)
    for name, value in rows.items():
        shown = " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, shown or "-")
    table.add_row("", "")
    return table


def _empty(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))


def _by_body(kernels: dict[str, str]) -> dict[str, str]:
    """The kernels of each implementation, as there are more kernels than implementations."""
    found: dict[str, list[str]] = {body: [] for body in sorted(set(kernels.values()))}
    for name, body in kernels.items():
        found[body].append(name)
    return {body: f"{len(names)}: {', '.join(names)}" for body, names in found.items()}


def _by_package(integrations: list[dict[str, Any]]) -> dict[str, str]:
    found = {}
    for facts in integrations:
        state = "installed" if facts["installed"] else f"not installed: {facts['without']}"
        off = f"; [bold red]off[/]: {'; '.join(facts['off'])}" if facts["off"] else ""
        found[facts["package"]] = state + off if facts["available"] else "not in this environment"
    return found


def _patches(patches: list[dict[str, Any]]) -> Table:
    table = _empty("Inside PyTorch")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for patch in patches:
        is_off = patch["is_off"]
        state = "[bold red]off[/]" if is_off else patch["state"]
        words = f"{patch['state']}: {patch['without']}" if is_off else f"PyTorch {patch['reason']}"
        table.add_row(state, f"[bold]{patch['target']}[/]")
        table.add_row("", f"[dim]{words}[/]")
    table.add_row("", "")
    return table
