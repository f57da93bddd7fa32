"""What ``make planted-faults`` plants can still be planted."""

from __future__ import annotations

import ast

import pytest

from tests.planted_faults.faults import FAULTS, ROOT, SOURCES, Fault


def test_there_are_twenty_one() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 21


@pytest.mark.every
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_has_one_place_and_leaves_python(fault: Fault) -> None:
    text = (ROOT / SOURCES / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, (
        f"{fault.file}: what is to be replaced is there {text.count(fault.old)} times"
    )
    assert fault.new != fault.old
    ast.parse(text.replace(fault.old, fault.new))
