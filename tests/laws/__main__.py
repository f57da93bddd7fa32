"""``python -m tests.laws``: see :mod:`tests.laws.any_type.command`."""

from tests.laws.any_type.command import app

if __name__ == "__main__":
    app(prog_name="python -m tests.laws")
