"""A short run of the laws on the PyTorch that PyTorch/XLA is built for, eagerly on the CPU, on few samples."""

from __future__ import annotations

import pytest
import torch

from tests.laws import effort
from tests.laws.any_type.notices import without_notices
from tests.laws.any_type.operator_database import Entry
from tests.laws.any_type.samples import Effort
from tests.laws.laws import check_identity, check_non_interference
from tests.laws.status import checked_entries

SHORT = Effort(samples=3, densities=(0.6,), alone=False, garbage=("nan", "-1e30"))

CHECKED = checked_entries()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "OWN", SHORT)


def test_the_operations_are_there() -> None:
    assert sum(torch.float32 in entry.info.dtypes for entry in CHECKED) >= 480


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_the_laws_hold_on_few_samples(entry: Entry) -> None:
    with without_notices():
        check_identity(entry)
        check_non_interference(entry)
