"""``maskgrad``: the commands and their modules."""

from __future__ import annotations

from typing import Annotated

import typer

import maskgrad
from maskgrad.cli import doctor, info, warmup

__all__ = ["app"]


app = typer.Typer(
    name="maskgrad",
    help="Masked and sparse gradients for PyTorch.",
    no_args_is_help=True,
    rich_markup_mode=None,  # its tables give flags the type "<bool>"
    add_completion=False,
    # A traceback with the values of all local variables would print whole tensors.
    pretty_exceptions_show_locals=False,
)
# Arguments after the script belong to the script.
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)(doctor.doctor)
app.command()(info.info)
app.command()(warmup.warmup)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"maskgrad {maskgrad.__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
