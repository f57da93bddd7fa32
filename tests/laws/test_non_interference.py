"""Law 2: what lies under the mask changes no specified result and no gradient, however the operation is spelled."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import check_non_interference, check_spellings
from tests.laws.second_order import check_derivatives, has_second_derivatives
from tests.laws.status import checked_entries

CHECKED = checked_entries()
TWICE = [entry for entry in CHECKED if has_second_derivatives(entry)]


@pytest.mark.every
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_garbage_under_the_mask_changes_nothing(entry: Entry) -> None:
    check_non_interference(entry)


@pytest.mark.every
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_every_spelling_says_the_same(entry: Entry) -> None:
    check_spellings(entry)


@pytest.mark.every
@pytest.mark.parametrize("entry", TWICE, ids=lambda entry: entry.id)
def test_first_and_second_derivatives_agree_with_finite_differences(entry: Entry) -> None:
    check_derivatives(entry)
