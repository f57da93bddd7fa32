"""What ``make planted-faults`` plants can still be planted, and its page says what came of it."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from tests.planted_faults.draw import is_drawn_from
from tests.planted_faults.fault import ROOT, SOURCES, Fault
from tests.planted_faults.faults import FAULTS
from tests.planted_faults.rooms import runs_for
from tests.planted_faults.table import PAGE, RESULTS, table


def test_there_are_many_and_about_half_of_them_are_drawn() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150
    drawn = [fault for fault in FAULTS if fault.drawn]
    assert 5 * len(drawn) >= 2 * len(FAULTS)
    assert all(is_drawn_from(fault.file) for fault in drawn)


@pytest.mark.every
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_has_one_place_and_leaves_python(fault: Fault) -> None:
    text = (ROOT / SOURCES / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, (
        f"{fault.file}: what is to be replaced is there {text.count(fault.old)} times"
        + ("; python -m tests.planted_faults.draw draws another" if fault.drawn else "")
    )
    assert fault.new != fault.old
    ast.parse(text.replace(fault.old, fault.new))


def test_each_has_tests_of_its_own_that_exist() -> None:
    for fault in FAULTS:
        own, laws = runs_for(fault)
        assert own, fault
        for argument in shlex.split(f"{own} {laws}"):
            assert "/" not in argument or (ROOT / argument).exists(), (fault.name, argument)


def test_the_page_is_written_from_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results) <= {fault.name for fault in FAULTS if not fault.equivalent}
    assert PAGE.read() == table(), "write it anew: python -m tests.planted_faults.table"
