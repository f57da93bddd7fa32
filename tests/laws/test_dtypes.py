"""Laws 1 and 2 in the other dtypes that an operation takes: with fewer samples, masks and kinds of garbage."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import check_identity, check_non_interference
from tests.laws.variants import in_other_dtypes


@pytest.mark.dtypes(per=lambda entry: (entry.operation.family, entry.dtype))
@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_the_laws_hold_in_every_dtype(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)
