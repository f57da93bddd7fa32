"""Trains a program of the corpus: ``maskgrad doctor -m tests.doctor.scripts.train NAME wrong``."""

from __future__ import annotations

import sys

import tests.doctor.scripts  # noqa: F401
from tests.doctor.scripts.script import programs

if __name__ == "__main__":
    (program,) = (program for program in programs() if program.name == sys.argv[1])
    program.script(wrong=sys.argv[2] == "wrong").run(100)
