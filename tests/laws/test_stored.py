"""Every entry of the database on sparse layouts and on sequences: what is stored means what a Boolean mask means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.laws.any_type.comparison import HALVES
from tests.laws.any_type.operator_database import Entry
from tests.laws.jagged import check_jagged
from tests.laws.status import checked_entries
from tests.laws.stored import CSR, Sparse, check_stored
from tests.laws.variants import in_other_dtypes

CHECKS = pytest.mark.parametrize("check", [check_stored, check_jagged], ids=lambda check: check.__name__[6:])


@pytest.mark.every
@CHECKS
@pytest.mark.parametrize("entry", checked_entries(), ids=lambda entry: entry.id)
def test_stored_entries_mean_what_a_boolean_mask_means(entry: Entry, check: Callable[[Entry], None]) -> None:
    check(entry)


@pytest.mark.dtypes(per=lambda entry, check: (entry.operation.family, entry.dtype, check))
@CHECKS
@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_stored_entries_mean_what_a_boolean_mask_means_in_every_dtype(
    entry: Entry, check: Callable[[Entry], None]
) -> None:
    check(entry)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    ones = torch.ones(1, 4096, dtype=dtype)
    x = Sparse(CSR, 2)(ones, ones.bool())
    for total in (x.sum(), x.sum(1).sum(), x.T.sum(0).sum(), (x @ torch.ones(4096, 1, dtype=dtype)).sum()):
        assert total.item() == 4096
        assert total.dtype == dtype
    assert (x @ x.T).sum().item() == 4096
    x = x * 300
    assert x.prod().item() == float("inf")
    assert torch.linalg.vector_norm(x).item() == pytest.approx(19200, rel=1e-2)
