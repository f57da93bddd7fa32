"""Laws 1 and 2 in the other dtypes that an operation takes: fewer samples, masks and kinds of garbage than in its own."""

from __future__ import annotations

import pytest
import torch

from tests.laws.laws import check_identity, check_non_interference
from tests.laws.operator_database import Entry
from tests.laws.status import checked_entries

#: float16 takes the ways of bfloat16: one entry of each family is enough.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


def in_other_dtypes() -> list[Entry]:
    entries = checked_entries()
    return [
        *(Entry(e.info, dtype) for e in entries for dtype in DTYPES if dtype in e.info.dtypes and dtype != e.dtype),
        *(
            Entry(e.info, torch.float16)
            for e in {e.operation.family: e for e in entries if torch.float16 in e.info.dtypes}.values()
        ),
    ]


@pytest.mark.parametrize("entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", ""))
def test_the_laws_hold_in_every_dtype(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)
