"""``python -m maskgrad``: the ``maskgrad`` command."""

from __future__ import annotations

import sys

from maskgrad.errors import MissingDependencyError


def main() -> None:
    """Run the command line, or name the extra to install if it is missing."""
    try:
        from maskgrad.cli.main import app
    except MissingDependencyError as error:
        sys.exit(f"Error: {error}")
    app(prog_name="maskgrad")


if __name__ == "__main__":
    main()
