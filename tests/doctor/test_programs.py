"""Nothing is found in programs that are right."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from maskgrad import doctor
from tests.doctor.pairs import described
from tests.doctor.programs_examined import PROGRAMS, load


@pytest.mark.corpus
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_nothing_is_found_in_a_right_program(path: Path) -> None:
    if "transformers" in path.read_text(encoding="utf-8") and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    program = load(path)
    program.train()
    report = doctor.examine(
        program.step, program.batch, padding=getattr(program, "padding", None), model=program.model
    )
    assert [described(finding) for finding in report.findings] == []


def test_there_are_ten_of_a_hundred_lines() -> None:
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) >= 100 for path in PROGRAMS) >= 10
