"""Programs of the pages about trainers and metrics, as they are printed there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.filterwarnings("ignore")  # of what a machine has
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program: Path) -> None:
    runpy.run_path(str(program))
