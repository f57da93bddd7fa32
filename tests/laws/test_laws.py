"""Laws 1 and 2 on every entry of the database, in every spelling, dtype and form.

Law 1: on fully specified input everything is PyTorch's: results, gradients, refusals. Law 2: what lies under the mask
changes no specified result and no gradient.
"""

from __future__ import annotations

import pytest

from maskgrad.semantics.refusals import REFUSALS
from tests.laws.any_type.operator_database import Entry
from tests.laws.laws import (
    check_identity,
    check_identity_of_refused,
    check_non_interference,
    check_refusals,
    check_spellings,
)
from tests.laws.second_order import check_derivatives, has_second_derivatives
from tests.laws.status import checked_entries, refused_entries
from tests.laws.variants import in_other_dtypes, in_other_forms

CHECKED = checked_entries()
TWICE = [entry for entry in CHECKED if has_second_derivatives(entry)]
#: Always refused; and a product that comes first, sometimes of no factors.
OTHERS = {refusal.name for refusal in REFUSALS if not refusal.of_values} | {"linalg.pinv-singular"}
REFUSED = [entry for entry in (*refused_entries(), *CHECKED) if entry.id not in OTHERS]


@pytest.mark.every
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_fully_specified_input_gives_what_torch_gives(entry: Entry) -> None:
    check_identity(entry)


@pytest.mark.every
@pytest.mark.filterwarnings(
    "ignore:(torch.|stft).* deprecated:UserWarning", "ignore:A window was not:UserWarning"
)
@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: entry.id)
def test_what_is_refused_on_incomplete_data_is_torchs_on_complete_data(entry: Entry) -> None:
    check_identity_of_refused(entry)


@pytest.mark.every
@pytest.mark.own_dtype("bfloat16")
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_what_torch_rejects_is_rejected(entry: Entry) -> None:
    check_refusals(entry)


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


@pytest.mark.dtypes(per=lambda entry: (entry.operation.family, entry.dtype))
@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_the_laws_hold_in_every_dtype(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)


@pytest.mark.forms(per=lambda entry: (entry.operation.family, entry.form))
@pytest.mark.parametrize("entry", in_other_forms(), ids=lambda entry: f"{entry.id}-{entry.form}")
def test_the_laws_hold_in_every_form(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)
