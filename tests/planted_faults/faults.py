"""All faults: those that somebody thought of (``by_hand.diff``), and those that a tool has drawn (``draw.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.planted_faults.draw import DRAWN
from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

BY_HAND = Path(__file__).with_name("by_hand.diff")


def _by_hand() -> Iterator[Fault]:
    """A file behind ``---``, and arguments of pytest, if not its own tests; a name behind ``@@``; - becomes +."""
    for of_file in BY_HAND.read_text(encoding="utf-8").split("--- ")[1:]:
        head, *faults = of_file.split("@@ ")
        file, _, tests = head.strip().partition(" ")
        for fault in faults:
            name, *lines = fault.removesuffix("\n").split("\n")
            old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
            yield Fault(name, file, old, new, tests)


def _drawn() -> Iterator[Fault]:
    for fault in json.loads(DRAWN.read_text(encoding="utf-8")):
        name = f"{fault['operator']} {fault['occurrence']} in {fault['file']}"
        yield Fault(
            name, fault["file"], fault["old"], fault["new"], equivalent=fault["equivalent"], drawn=True
        )


FAULTS: tuple[Fault, ...] = (*_by_hand(), *_drawn())
