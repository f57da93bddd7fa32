"""DLPack carries values; the mask goes beside them, and never gets lost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned
from tests.unit.interop.neighbours import NUMBERS, as_dtype


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_through_numpy_and_back(dtype: torch.dtype) -> None:
    entries = as_dtype([1, None, 0], dtype)
    known = torch.tensor([True, False, True])
    x = mg.masked(torch.tensor([e or 0 for e in entries], dtype=dtype), known)
    values, mask = np.from_dlpack(x.filled(False)), np.from_dlpack(x.mask)
    back = mg.masked(torch.from_dlpack(values.copy()), torch.from_dlpack(mask.copy()))
    assert_entries(back, entries, dtype)


def test_values_of_arrow() -> None:
    values = torch.from_dlpack(pa.array([1.0, 2.0]))
    assert_entries(mg.masked(values, torch.from_dlpack(np.array([False, True]))), [None, 2.0])


@pytest.mark.parametrize("reader", [torch.from_dlpack, np.from_dlpack, torch.as_tensor])
def test_a_masked_tensor_itself_is_refused(reader: object) -> None:
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"no place for a mask.*x.filled\(0.\) and x.mask"):
        reader(poisoned([1.0, None]))
