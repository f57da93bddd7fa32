"""``python -m maskgrad``: the ``maskgrad`` command."""

from __future__ import annotations

from maskgrad.cli.main import app

if __name__ == "__main__":
    app(prog_name="maskgrad")
