"""What a fault is, and which tests see those of a file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "SOURCES", "Fault", "room_of"]

ROOT = Path(__file__).parents[2]
SOURCES = Path("src") / "maskgrad"


class Fault(NamedTuple):
    """One fault; ``old`` occurs exactly once in ``file``, and ``new`` takes its place."""

    name: str
    file: str
    old: str
    new: str
    tests: str = ""
    """Arguments of pytest: the tests of its room, if not those of its file (``rooms.py``)."""
    equivalent: str = ""
    """Why no test can see it; empty if one must."""
    drawn: bool = False
    """Whether a tool has drawn it."""


def room_of(fault: Fault) -> str:
    """The folder of ``src/maskgrad`` in which it is."""
    return fault.file.partition("/")[0].removesuffix(".py")
