"""``maskgrad``: the commands and where they are."""

from __future__ import annotations

from maskgrad.optional_packages import require

require("typer", "the command line", "cli")

import typer  # noqa: E402  (after it is known to be there)

from maskgrad.cli import bench, demo, doctor, info  # noqa: E402

__all__ = ["app"]

app = typer.Typer(
    name="maskgrad",
    help="Masked and sparse gradients for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with the values of all local variables would print whole tensors.
    pretty_exceptions_show_locals=False,
)
app.add_typer(demo.app, name="demo")
app.command()(bench.bench)
# What follows the script belongs to the script.
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)(doctor.doctor)
app.command()(info.info)


@app.callback()
def _commands() -> None:
    # Typer makes a program with one subcommand into that subcommand unless there is a callback.
    pass


if __name__ == "__main__":
    app()
