"""Each suite against ours: equal, or different by a rule of the table."""

from __future__ import annotations

import importlib

import pytest

from tests.effort import is_light
from tests.peers.rules import RULES
from tests.peers.suite import LIGHT, Suite, judged
from tests.peers.table import NAMES, PAGE, numbers_of, suites, table


def suite_of(name: str) -> Suite:
    """The suite of a module; skips where its package is not installed."""
    try:
        module = importlib.import_module(f"tests.peers.suites.{name}")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    found: Suite = module.SUITE
    return found


@pytest.mark.corpus(keep=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_suite(name: str) -> None:
    suite = suite_of(name)
    result = judged(suite, RULES, LIGHT if is_light() else 1)
    assert not result.faults, "\n".join(f"{case}: {text}" for case, text in result.faults[:20])
    assert result.equal
    if not is_light():
        unused = {r.differs for r in RULES if suite.name in r.suites} - set(result.explained)
        assert not unused, f"no case of {suite.name} needs these rules any more: {unused}"


def test_the_table_is_short() -> None:
    assert len(RULES) <= 40


def test_the_page_has_these_suites_and_rules() -> None:
    """Numbers differ with the versions of packages; write them anew with ``python -m tests.peers``."""
    numbers = numbers_of(PAGE.read())
    assert table(numbers) == PAGE.read()
    assert {suite.name for suite in suites().values() if suite is not None} <= set(numbers)
    assert len(numbers) == len(NAMES)
