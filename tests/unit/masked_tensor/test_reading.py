"""Reading what is specified: plain tensors, numbers, lists. On all layouts: tests/unit/patterns/suite/reading.py."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import gradient, leaf, nan, poisoned

HALF_KNOWN = [[1.0, None], [None, 4.0]]


def test_filled_with_a_number_or_with_a_tensor_that_broadcasts() -> None:
    x, filler = poisoned(HALF_KNOWN, requires_grad=True), leaf(7.0, 8.0)
    assert x.filled().tolist() == x.to_tensor().tolist() == [[1.0, 0.0], [0.0, 4.0]]
    assert gradient(x.filled(nan).square(), x).tolist() == [[2.0, 0.0], [0.0, 8.0]]
    assert x.filled(filler).tolist() == [[1.0, 8.0], [7.0, 4.0]]
    assert gradient(x.filled(filler), filler).tolist() == [1.0, 1.0]
    for value, dtype in ((0, torch.int32), (0.5, torch.float32), (1j, torch.complex64)):  # like where
        assert poisoned([1, None], torch.int32).filled(value).dtype == dtype
    for value in ("mean", None, mg.unspecified):
        with pytest.raises(
            TypeError, match=r"^value must be a number or a tensor, found .*; write x.filled\(0.\)"
        ):
            x.filled(value)
    complete = mg.from_lengths(torch.ones(2, 3, 2), torch.tensor([2, 3])).mean(1)
    complete.filled(0.0).zero_()  # a copy, also where one True stands for all entries
    assert complete.tolist() == [[1.0, 1.0]] * 2


def test_compressed_is_in_row_major_order() -> None:
    x = poisoned([[1.0, None, 3.0], [4.0, 5.0, None]], requires_grad=True)
    assert x.T.compressed().tolist() == [1.0, 4.0, 5.0, 3.0]
    assert gradient(x.compressed() ** 2, x).tolist() == [[2.0, 0.0, 6.0], [8.0, 10.0, 0.0]]
    count = x.num_specified()
    assert (type(count), count.dtype, count.item()) == (torch.Tensor, torch.int64, 4)


def test_one_entry_is_read_as_a_number() -> None:
    assert poisoned(3.0).item() == 3.0
    assert poisoned([[True]], torch.bool).item() is True
    assert float(poisoned(2.5)) == 2.5
    assert int(poisoned(2.5)) == 2
    assert complex(poisoned(2j, torch.complex64)) == 2j
    assert bool(poisoned(0.0)) is False
    assert [10, 20, 30][poisoned(1, torch.int64)] == 20
    with pytest.raises(TypeError, match="integer"):
        range(poisoned(1.5))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"item.. needs one entry, but this MaskedTensor has 2"):
        poisoned([1.0, None]).item()
    for read in (mg.MaskedTensor.item, float, int, bool, complex, range):
        with pytest.raises(
            mg.UnspecifiedValueError, match=r"needs a specified entry, .*x.filled\(0.\).item\(\)"
        ):
            read(poisoned(None, torch.int64))


def test_lists_and_sequences_of_rows() -> None:
    assert poisoned(None).tolist() is None
    assert mg.masked(torch.zeros(2, 0)).tolist() == [[], []]
    x = poisoned(HALF_KNOWN)
    assert len(x) == 2
    assert [row.tolist() for row in x] == x.tolist() == HALF_KNOWN
    assert [row.tolist() for row in reversed(x)] == HALF_KNOWN[::-1]
    for read in (len, list):
        with pytest.raises(TypeError, match="0-d tensor"):
            read(poisoned(1.0))
    with pytest.raises(TypeError, match=r"use \(masked == value\).any\(\)"):
        _ = 1.0 in x
    assert {x: "found"}[x] == "found"
    assert hash(x) != hash(mg.masked(x, x.mask))
