"""How much of PyTorch is covered, and that the documentation says so."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.defaults import chosen_dtype
from tests.laws.any_type.exclusions import NOT_IN, OUTSIDE, OUTSIDE_BY_NAME
from tests.laws.any_type.operator_database import ENTRIES
from tests.laws.coverage_table import PAGE, statuses, table
from tests.laws.exclusions import NOT_AS, WITHOUT_SAMPLES
from tests.laws.status import STATUSES, entries_to_answer_for

#: Entries that the database of PyTorch 2.12 does not have.
SINCE_2_13 = {
    "bmm-triton_optimized",
    "native_group_norm",
    "nn.functional.linear_cross_entropy",
    "nn.functional.linear_cross_entropy-chunked",
    "nn.functional.linear_cross_entropy-chunked_none",
}


def test_at_least_480_float_operations_are_supported_and_nothing_is_left_open() -> None:
    floats = [entry for entry in entries_to_answer_for() if torch.float32 in entry.info.dtypes]
    found = statuses()
    counts = Counter(found[entry.id].name for entry in floats)
    assert counts["supported"] >= 480
    assert {status.name for status in found.values()} == {"supported", "refused"} <= set(STATUSES)


def test_what_is_left_out_is_in_the_database() -> None:
    names = {entry.name for entry in ENTRIES}
    assert set(OUTSIDE_BY_NAME) <= names
    assert all(any(entry.id.startswith(start) for entry in ENTRIES) for start in OUTSIDE)
    assert all(entry.operation is None for entry in ENTRIES if entry.outside)
    assert names >= {*NOT_IN, *NOT_AS}
    missing = {id for ids in WITHOUT_SAMPLES.values() for id in ids} - {entry.id for entry in ENTRIES}
    assert missing == (set() if torch.__version__ >= (2, 13) else SINCE_2_13)


def test_the_committed_table_is_up_to_date() -> None:
    committed = PAGE.read()
    version = torch.__version__.partition("+")[0]
    if f"PyTorch {version}." not in committed or chosen_dtype(None):
        pytest.skip(f"the table is not of {version}, or not of --dtype")
    assert committed == table(statuses()), "write it anew with: python -m tests.laws.coverage_table"
