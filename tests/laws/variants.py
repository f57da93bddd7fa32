"""The entries once more: in the other dtypes that torch takes, and on tensors of other forms."""

from __future__ import annotations

import torch

from tests.defaults import chosen_dtype
from tests.laws.any_type.operator_database import Entry, takes
from tests.laws.any_type.samples import FORMS
from tests.laws.exclusions import NOT_AS, WITHOUT_SAMPLES
from tests.laws.status import checked_entries

__all__ = ["in_other_dtypes", "in_other_forms"]

#: float16 takes the ways of bfloat16: one entry of each family is enough.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


def in_other_dtypes() -> list[Entry]:
    entries = checked_entries()
    return [
        *(
            Entry(e.info, dtype)
            for e in entries
            for dtype in DTYPES
            if dtype not in (e.dtype, chosen_dtype(None)) and takes(e.info, dtype)
        ),
        *(
            Entry(e.info, torch.float16)
            for e in {e.operation.family: e for e in entries if takes(e.info, torch.float16)}.values()
        ),
    ]


def in_other_forms() -> list[Entry]:
    """Strided, emptied, single."""
    return [
        Entry(entry.info, form=form)
        for entry in checked_entries()
        for form in FORMS
        if form not in NOT_AS.get(entry.name, ((), ""))[0] and entry.id not in WITHOUT_SAMPLES.get(form, ())
    ]
