"""Law 1: on fully specified input everything is PyTorch's: results, gradients, refusals."""

from __future__ import annotations

import pytest

from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import check_identity, check_refusals
from tests.laws.status import checked_entries

CHECKED = checked_entries()

pytestmark = pytest.mark.every


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_fully_specified_input_gives_what_torch_gives(entry: Entry) -> None:
    check_identity(entry)


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_what_torch_rejects_is_rejected(entry: Entry) -> None:
    check_refusals(entry)
