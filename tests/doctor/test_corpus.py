"""Each pair of the corpus: the mistake is found at its line, and nothing is found once it is fixed."""

from __future__ import annotations

import re

import pytest

from maskgrad.doctor.findings import _OF_KINDS
from tests.doctor.pairs import Pair, diagnose, marked, pairs
from tests.doctor.table import KNOWN, PAGE, table
from tests.project_file import ROOT

PAIRS = pairs()


@pytest.mark.corpus
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_mistake_is_found_and_its_remedy_is_not(pair: Pair) -> None:
    outcome = diagnose(pair)
    assert outcome.verdict == KNOWN.get(pair.name, "found at its line"), outcome
    assert not outcome.alarms


def test_there_is_a_pair_for_every_kind_of_finding() -> None:
    # what is only examined if it is asked for has tests of its own
    assert {pair.kind for pair in PAIRS} == set(_OF_KINDS) - {"batch-bits"}


def test_a_pair_has_a_thread_and_a_marked_line_or_module() -> None:
    for pair in PAIRS:
        assert pair.title.endswith("."), pair.name
        assert re.match(r"[\w.-]+/[\w.-]+#\d+|none found; ", pair.thread), (
            f"{pair.name}: owner/repository#number"
        )
        assert bool(marked(pair.made)) != bool(pair.module), (
            f"{pair.name}: mark a line, or declare the module"
        )


def test_at_least_38_of_40_are_found_and_34_with_their_line() -> None:
    missed = sum(verdict == "missed" for verdict in KNOWN.values())
    assert len(PAIRS) >= 40
    assert set(KNOWN) <= {pair.name for pair in PAIRS}
    assert (len(PAIRS) - missed) * 40 >= 38 * len(PAIRS)
    assert (len(PAIRS) - len(KNOWN)) * 40 >= 34 * len(PAIRS)


def test_the_readme_says_how_many_there_are() -> None:
    assert f"all [{len(PAIRS)} mistakes]" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_committed_table_is_up_to_date() -> None:
    assert PAGE.read() == table(PAIRS), "write it anew with: python -m tests.doctor.table"
