"""Constructors: what they accept, what they share, what they refuse and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on

TWO, ROWS = torch.zeros(2), torch.zeros(2, 3)
META, SPARSE = torch.zeros(3, device="meta"), torch.eye(2).to_sparse()
LENGTHS = torch.tensor([2, 1])

#: Call, kind of error, and its words.
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a mask in a list": (lambda: mg.masked(TWO, [True, False]), TypeError,
                         "mask must be a Boolean .* found list; .*as_tensor"),
    "a mask elsewhere": (lambda: mg.masked(META, on(1, 0, 1)), ValueError,
                         r"mask must be on the device of the data, meta, found cpu; use mask\.to"),
    "data in a list": (lambda: mg.masked([1.0, 2.0], on(1, 0)), TypeError,
                       r"data must be a strided torch.Tensor, found list; .*as_tensor"),
    "data of numpy": (lambda: mg.masked(np.zeros(2)), TypeError, "found ndarray; .*as_tensor"),
    "no data": (lambda: mg.masked(None), TypeError, "found NoneType"),
    "sparse data": (lambda: mg.masked(SPARSE), TypeError, r"found layout torch\.sparse_coo; use mg\.from_sparse"),
    "NaN in a list": (lambda: mg.from_nan([nan, 1.0]), TypeError, "strided torch.Tensor, found list"),
    "sparse data with NaN": (lambda: mg.from_nan(SPARSE), TypeError, "strided"),
    "lengths in a list": (lambda: mg.from_lengths(ROWS, [2, 1]), TypeError,
                          r"integer tensor, found list; use torch\.tensor\(lengths\)\.long"),
    "lengths of floats": (lambda: mg.from_lengths(ROWS, LENGTHS * 1.0), TypeError, r"float32; use lengths\.long"),
    "complex": (lambda: mg.from_lengths(ROWS, LENGTHS * 1j), TypeError, r"torch\.complex64; use"),
    "too long": (lambda: mg.from_lengths(ROWS, LENGTHS * 2), ValueError,
                 "lengths must lie between 0 and 3, the size of dim 1, found 2 to 4"),
    "negative": (lambda: mg.from_lengths(ROWS, LENGTHS - 2), ValueError, "between 0 and 3.* found -1 to 0"),
    "a length too many": (lambda: mg.from_lengths(ROWS, torch.ones(3).long()), ValueError,
                          r"shape \(B,\) = \(2,\).*found \(3,\)"),
    "lengths in a column": (lambda: mg.from_lengths(ROWS, LENGTHS[:, None]), ValueError, r"found \(2, 1\)"),
    "one length": (lambda: mg.from_lengths(ROWS, torch.tensor(1)), ValueError, r"found \(\)"),
    "the batch": (lambda: mg.from_lengths(ROWS, LENGTHS, dim=-2), ValueError,
                  "other than 0 .the batch., found -2 for 2 dimensions"),
    "no such dimension": (lambda: mg.from_lengths(ROWS, LENGTHS, dim=2), ValueError, "found 2 for 2 dimensions"),
    "a vector": (lambda: mg.from_lengths(TWO, LENGTHS), ValueError, r"one length for each sequence of data \(2,\)"),
    "lengths elsewhere": (lambda: mg.from_lengths(ROWS, LENGTHS.to("meta")), ValueError,
                          r"lengths must be on the device of data, cpu, found meta; use lengths\.to\('cpu'\)"),
    "a tensor as numpy": (lambda: mg.from_numpy(TWO), TypeError,
                          r"array must be a numpy array, found Tensor; use mg\.masked for tensors"),
    "text": (lambda: mg.from_numpy(np.array(["a"])), TypeError, "array must contain numbers or Booleans"),
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    call, kind, words = WRONG[name]
    with pytest.raises(kind, match=words):
        call()


class TestMasked:
    @pytest.mark.parametrize("mask", [on([1, 0, 1]), on([1], [0]), torch.tensor(True)])
    def test_a_mask_broadcasts_without_a_copy(self, mask: torch.Tensor) -> None:
        x = mg.masked(torch.full((2, 3), inf), mask)
        assert x.mask.data_ptr() == mask.data_ptr()
        assert torch.equal(x.mask, mask.expand(2, 3))

    def test_without_a_mask_everything_is_specified(self) -> None:
        assert_entries(mg.masked(torch.ones(2, 3)), [[1.0] * 3] * 2)
        assert mg.masked(torch.ones(2, 3)).mask.stride() == (0, 0)

    def test_a_masked_tensor_keeps_its_own_mask_too(self) -> None:
        x = mg.masked(torch.tensor([1.0, nan, inf]), on(1, 0, 1))
        assert mg.masked(x) is x
        assert_entries(mg.masked(x, on(1, 1, 0)), [1.0, None, None])
        assert_entries(x, [1.0, None, inf])


class TestFromNan:
    def test_a_complex_number_is_nan_if_a_part_is(self) -> None:
        x = mg.from_nan(torch.tensor([complex(nan, 1), complex(1, nan), 2 + 1j, complex(inf, 0)]))
        assert x.mask.tolist() == [False, False, True, True]


class TestFromNumpy:
    def test_numpys_true_means_missing(self) -> None:
        array = np.ma.array([1.0, nan, 3.0], mask=[False, True, False])
        assert_entries(mg.from_numpy(array), [1.0, None, 3.0])
        assert_entries(mg.from_numpy(np.ma.array(nan, mask=True)), None)
        back = mg.from_numpy(array).to_numpy()
        assert np.array_equal(back.mask, array.mask)
        assert np.array_equal(back.filled(0), array.filled(0))

    @pytest.mark.parametrize(
        "array", [np.array([1, 2]), np.ma.array([1, 2]), np.ma.array([1, 2], mask=False)]
    )
    def test_no_mask_means_fully_specified_and_memory_is_shared(self, array: Any) -> None:
        x = mg.from_numpy(array)
        assert_entries(x, [1, 2], dtype=torch.int64)
        array[0] = 7
        assert_entries(x, [7, 2])
