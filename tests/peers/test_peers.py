"""Each suite against ours: equal, or different by a rule of the table."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tests.peers.suites
from tests.effort import is_light
from tests.peers.rules import RULES
from tests.peers.suite import LIGHT, Suite, judged

NAMES = sorted(module.name for module in pkgutil.iter_modules(tests.peers.suites.__path__))


def suite_of(name: str) -> Suite:
    """The suite of a module; skips where its package is not installed."""
    try:
        module = importlib.import_module(f"tests.peers.suites.{name}")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    found: Suite = module.SUITE
    return found


@pytest.mark.every
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
