"""The corpus "scripts": each wrong program is found at its line, and nothing is found in the right one."""

from __future__ import annotations

import pytest

import tests.doctor.scripts  # noqa: F401
from tests.doctor.forms import Form, forms, verdict_of
from tests.doctor.known import FORMS, KNOWN
from tests.doctor.scripts.script import WRONG, Program, depends_on_padding, judged, programs

PROGRAMS = programs()
#: a prime: each kind, form, side and name is met
SAMPLE = forms()[::31]
pytestmark = pytest.mark.every


@pytest.mark.filterwarnings("ignore::UserWarning")  # compiled programs run uncompiled; torch's own remarks
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_script_is_judged_rightly_by_examine_and_by_watch(program: Program) -> None:
    verdicts = {
        f"{way} {WRONG[wrong]}": judged(program, way, wrong=wrong) for way in program.ways for wrong in WRONG
    }
    misjudged = {case: verdict for case, verdict in verdicts.items() if verdict != "right"}
    assert sorted(misjudged) == sorted(KNOWN.get(program.name, ())), verdicts


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_wrong_program_depends_on_padding_and_the_right_one_does_not(program: Program) -> None:
    wrong, right = program.script(wrong=True), program.script(wrong=False)
    assert program.marked[1]
    if wrong.real:
        assert depends_on_padding(wrong)
    if right.real:
        assert not depends_on_padding(right)


def test_there_are_sixty_and_the_known_misjudgements_are_of_them() -> None:
    assert len(PROGRAMS) >= 60
    assert set(KNOWN) <= {program.name for program in PROGRAMS}


@pytest.mark.parametrize("form", SAMPLE, ids=str)
def test_a_form_of_mask_is_recognised(form: Form) -> None:
    verdict = verdict_of(form, "examine")
    assert (verdict not in ("right", "incomplete")) == (str(form) in FORMS), verdict


def test_the_known_forms_are_of_the_sample() -> None:
    assert set(FORMS) <= {str(form) for form in SAMPLE}
