"""DLPack carries values; the mask goes beside them, and never gets lost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned
from tests.unit.interop.neighbours import NUMBERS, as_dtype


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_through_numpy_and_back(dtype: torch.dtype) -> None:
    entries = as_dtype([1, None, 0], dtype)
    known = torch.tensor([True, False, True])
    x = mg.masked(torch.tensor([e or 0 for e in entries], dtype=dtype), known)
    exported = mg.interop.to_dlpack(x)
    values, mask = np.from_dlpack(exported.values), np.from_dlpack(exported.mask)
    assert mask.tolist() == [True, False, True]
    back = mg.interop.from_dlpack(values.copy(), mask.copy())
    assert_entries(back, entries, dtype)


def test_values_are_shared_and_gradients_stay_behind() -> None:
    x = poisoned([1.0, None], requires_grad=True)
    values, mask = mg.interop.to_dlpack(x)
    assert not values.requires_grad
    assert values.data_ptr() == x._values.data_ptr()
    assert mask.equal(x.mask)


def test_expanded_masks_are_spelled_out() -> None:
    exported = mg.interop.to_dlpack(mg.from_lengths(torch.ones(2, 3, 4), torch.tensor([1, 3])))
    assert exported.mask.is_contiguous()
    assert np.from_dlpack(exported.mask)[:, :, 0].tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_shapes_without_much(shape: tuple[int, ...]) -> None:
    values, mask = mg.interop.to_dlpack(mg.masked(torch.zeros(shape)))
    assert mg.interop.from_dlpack(values, mask).shape == shape


def test_arrow_speaks_it_too() -> None:
    assert_entries(mg.interop.from_dlpack(pa.array([1.0, 2.0]), np.array([False, True])), [None, 2.0])


@pytest.mark.parametrize("reader", [torch.from_dlpack, np.from_dlpack, torch.as_tensor])
def test_a_masked_tensor_itself_is_refused(reader: object) -> None:
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"no place for a mask.*mg.interop.to_dlpack\(x\)"):
        reader(poisoned([1.0, None]))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"values must be an array with __dlpack__, found list"):
        mg.interop.from_dlpack([1.0], np.array([True]))
    with pytest.raises(TypeError, match=r"mask must be an array with __dlpack__, found list"):
        mg.interop.from_dlpack(np.ones(1), [True])
    with pytest.raises(TypeError, match=r"mask must be a Boolean torch.Tensor"):
        mg.interop.from_dlpack(np.ones(1), np.ones(1, np.float32))
    with pytest.raises(ValueError, match=r"mask must have as many dimensions"):
        mg.interop.from_dlpack(np.ones(2), np.ones(3, bool))
    with pytest.raises(TypeError, match=r"x must be a MaskedTensor"):
        mg.interop.to_dlpack(torch.ones(1))
    with pytest.raises(TypeError, match=r"strided layout"):
        mg.interop.to_dlpack(mg.masked(torch.ones(1, 1), on([1])).to_sparse())
