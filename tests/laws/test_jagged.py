"""Every entry of the database on sequences of different lengths: rows mean what a Boolean mask means."""

from __future__ import annotations

import pytest

from tests.laws.jagged import check_jagged
from tests.laws.operator_database import Entry
from tests.laws.status import checked_entries


@pytest.mark.every
@pytest.mark.parametrize("entry", checked_entries(), ids=lambda entry: entry.id)
def test_rows_mean_what_a_boolean_mask_means(entry: Entry) -> None:
    check_jagged(entry)
