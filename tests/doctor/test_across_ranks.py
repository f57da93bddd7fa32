"""Each step on four simulated ranks: the mistake is found at its line, and nothing is found without it."""

from __future__ import annotations

import pytest

import tests.doctor.across_ranks  # noqa: F401
from tests.doctor.across_ranks.step import STEPS
from tests.doctor.pairs import Pair, marked

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")


@pytest.mark.parametrize("step", [step for step in STEPS if step.kind], ids=lambda step: step.name)
def test_the_mistake_is_found_at_its_line(step: Pair) -> None:
    report = step.examined(wrong=True)
    (found,) = report.findings
    assert found.kind == step.kind, report
    assert (found.file, found.line) in marked(step.made), report
    assert "ranks" in {experiment.name for experiment in report.experiments}
    assert found.remedy


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_right_step_is_ok(step: Pair) -> None:
    report = step.examined(wrong=False)
    assert report.verdict == "ok", report
    assert [each.name for each in report.experiments] == ["ranks", "ranks"]


def test_there_are_many_steps_each_with_a_sentence_and_a_marked_line() -> None:
    assert len(STEPS) >= 24
    for step in STEPS:
        assert step.title.endswith("."), step.name
        assert bool(marked(step.made)) == bool(step.kind), step.name
