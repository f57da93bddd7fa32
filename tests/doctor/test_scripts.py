"""The corpus "scripts": each wrong program is found at its line, and nothing is found in the right one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

import tests.doctor.scripts  # noqa: F401
from tests.doctor.forms import GOALS, counts, forms, verdict_of
from tests.doctor.pairs import marked
from tests.doctor.scripts.script import WAYS, WRONG, Program, depends_on_padding, judged, programs
from tests.effort import is_light

PROGRAMS = programs()
#: all, or of the many some: by a prime number each kind, form, side and name is met
SAMPLE = forms()[::31] if is_light() else forms()
#: How many programs the light run tries.
LIGHT = 18


@pytest.fixture(autouse=True)
def no_process_group_stays() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")  # compiled programs run uncompiled; torch's own remarks
@pytest.mark.corpus(keep=LIGHT)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_script_is_judged_rightly_by_examine_and_by_watch(program: Program) -> None:
    verdicts = {
        f"{way} {WRONG[wrong]}": judged(program, way, wrong=wrong) for way in program.ways for wrong in WRONG
    }
    assert set(verdicts.values()) == {"right"}, verdicts


@pytest.mark.corpus(keep=LIGHT)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_wrong_program_depends_on_padding_and_the_right_one_does_not(program: Program) -> None:
    wrong, right = program.script(wrong=True), program.script(wrong=False)
    assert marked(program.source)
    if wrong.real:
        assert depends_on_padding(wrong)
    if right.real:
        assert not depends_on_padding(right)


def test_there_are_sixty() -> None:
    assert len(PROGRAMS) >= 60


@pytest.mark.parametrize("way", WAYS)
def test_forms_of_masks_are_recognised_as_often_as_is_the_goal(way: str) -> None:
    verdicts = {form: verdict_of(form, way) for form in SAMPLE}
    misjudged = {str(form): verdict for form, verdict in verdicts.items() if verdict != "right"}
    for name, value in counts(verdicts).items():
        assert value <= GOALS[name], f"{name}: {value}, {misjudged}"
