"""``maskgrad``: the commands and their modules."""

from __future__ import annotations

from typing import Annotated

from maskgrad.optional_packages import require

require("typer", "the command line", "cli")

import typer  # noqa: E402  (after checking that it is installed)

import maskgrad  # noqa: E402
from maskgrad.cli import doctor, info, programs, warmup  # noqa: E402

__all__ = ["app"]

app = typer.Typer(
    name="maskgrad",
    help="Masked and sparse gradients for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with the values of all local variables would print whole tensors.
    pretty_exceptions_show_locals=False,
)
app.command(context_settings=programs.PASSED_ON)(programs.demo)
app.command(context_settings=programs.PASSED_ON | {"help_option_names": []})(programs.bench)
# Arguments after the script belong to the script.
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
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


if __name__ == "__main__":
    app()
