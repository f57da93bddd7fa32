"""Law 3: what reduces, scans, normalises, orders or scores does so on the entries that are left."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import entry_named
from tests.laws.deletion_samples import BY_DELETION, REDUCTIONS, empty_slices, samples_by_deletion
from tests.laws.laws import check_plan
from tests.laws.oracles import REDUCES


def test_no_reduction_is_forgotten() -> None:
    assert {entry_named(name).operation.name for name in REDUCTIONS} == set(REDUCES.split())


@pytest.mark.every
@pytest.mark.parametrize("name", BY_DELETION)
def test_what_is_left_might_as_well_stand_alone(name: str) -> None:
    entry = entry_named(name)
    for what, sample in samples_by_deletion(entry):
        call = Call.of(entry, sample)
        for plan in empty_slices(call):
            check_plan(entry, call, plan, f"{name}, {what}, {plan.name}")
