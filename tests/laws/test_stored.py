"""Every entry of the database on sparse layouts: stored entries mean what a Boolean mask means."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operator_database import Entry
from tests.laws.status import checked_entries
from tests.laws.stored import check_stored
from tests.laws.variants import in_other_dtypes


@pytest.mark.every
@pytest.mark.parametrize("entry", checked_entries(), ids=lambda entry: entry.id)
def test_stored_entries_mean_what_a_boolean_mask_means(entry: Entry) -> None:
    check_stored(entry)


@pytest.mark.dtypes(per=lambda entry: (entry.operation.family, entry.dtype))
@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_stored_entries_mean_what_a_boolean_mask_means_in_every_dtype(entry: Entry) -> None:
    check_stored(entry)
