"""Laws 1 and 2 on tensors that are not contiguous, have no entries, or have no dimensions, where torch takes them."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import check_identity, check_non_interference
from tests.laws.variants import in_other_forms


@pytest.mark.forms(per=lambda entry: (entry.operation.family, entry.form))
@pytest.mark.parametrize("entry", in_other_forms(), ids=lambda entry: f"{entry.id}-{entry.form}")
def test_the_laws_hold_in_every_form(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)
