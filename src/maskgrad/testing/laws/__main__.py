"""``python -m maskgrad.testing.laws``: see :mod:`maskgrad.testing.laws.command`."""

from __future__ import annotations

import sys

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require


def main() -> None:
    """Run the command, or name the extra to install."""
    try:
        require("expecttest", "python -m maskgrad.testing.laws", "laws")  # torch.testing._internal imports it
    except MissingDependencyError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    from maskgrad.testing.laws.command import app

    app(prog_name="python -m maskgrad.testing.laws")


if __name__ == "__main__":
    main()
