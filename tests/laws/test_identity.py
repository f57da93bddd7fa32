"""Law 1: on fully specified input everything is PyTorch's: results, gradients, refusals."""

from __future__ import annotations

import pytest

from maskgrad.semantics.refusals import REFUSALS
from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import check_identity, check_identity_of_refused, check_refusals
from tests.laws.status import checked_entries, refused_entries

CHECKED = checked_entries()

pytestmark = pytest.mark.every


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_fully_specified_input_gives_what_torch_gives(entry: Entry) -> None:
    check_identity(entry)


#: Always refused; and a product that comes first, sometimes of no factors.
OTHERS = {refusal.name for refusal in REFUSALS if not refusal.of_values} | {"linalg.pinv-singular"}
REFUSED = [entry for entry in (*refused_entries(), *CHECKED) if entry.id not in OTHERS]


@pytest.mark.filterwarnings(
    "ignore:(torch.|stft).* deprecated:UserWarning", "ignore:A window was not:UserWarning"
)
@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: entry.id)
def test_what_is_refused_on_incomplete_data_is_torchs_on_complete_data(entry: Entry) -> None:
    check_identity_of_refused(entry)


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_what_torch_rejects_is_rejected(entry: Entry) -> None:
    check_refusals(entry)
