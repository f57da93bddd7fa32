"""Reading what is specified: plain tensors, numbers, lists. On all layouts: tests/unit/patterns/suite/reading.py."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned

HALF_KNOWN = [[1.0, None], [None, 4.0]]


def test_filled_with_a_number() -> None:
    x = poisoned(HALF_KNOWN, requires_grad=True)
    assert x.filled().tolist() == x.to_tensor().tolist() == [[1.0, 0.0], [0.0, 4.0]]
    assert gradient(x.filled(nan).square(), x).tolist() == [[2.0, 0.0], [0.0, 8.0]]


@pytest.mark.parametrize("value", [0, -1.5, True, nan, inf])
def test_a_large_tensor_is_filled_as_a_small_one_is(value: float) -> None:
    data, mask = torch.randn(500, 100), torch.rand(500, 100) < 0.5
    for columns in (mask, mask[:, :1]):
        x = mg.masked(data.masked_fill(~columns, nan).requires_grad_(), columns)
        expected = torch.where(x.mask, data, value)
        torch.testing.assert_close(x.filled(value), expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(gradient(x.filled(value), x), x.mask.float())


def test_filled_with_a_tensor_that_broadcasts() -> None:
    x, filler = poisoned(HALF_KNOWN, requires_grad=True), leaf(7.0, 8.0)
    assert x.filled(filler).tolist() == [[1.0, 8.0], [7.0, 4.0]]
    assert gradient(x.filled(filler), filler).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("value", "dtype"), [(0, torch.int32), (0.5, torch.float32), (1j, torch.complex64)])
def test_filled_promotes_like_where(value: complex, dtype: torch.dtype) -> None:
    assert poisoned([1, None], torch.int32).filled(value).dtype == dtype


def test_compressed_is_in_row_major_order() -> None:
    x = poisoned([[1.0, None, 3.0], [4.0, 5.0, None]], requires_grad=True)
    assert x.compressed().tolist() == [1.0, 3.0, 4.0, 5.0]
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


@pytest.mark.parametrize("read", [mg.MaskedTensor.item, float, int, bool, complex, range])
def test_a_number_is_not_invented(read: type) -> None:
    with pytest.raises(mg.UnspecifiedValueError, match=r"needs a specified entry, .*x.filled\(0.\).item\(\)"):
        read(poisoned(None, torch.int64))


def test_tolist_has_none_where_unspecified() -> None:
    assert poisoned([[1, None], [None, 4]], torch.int32).tolist() == [[1, None], [None, 4]]
    assert poisoned(None).tolist() is None
    assert mg.masked(torch.zeros(2, 0)).tolist() == [[], []]


def test_a_sequence_of_rows() -> None:
    x = poisoned(HALF_KNOWN)
    assert len(x) == 2
    assert [row.tolist() for row in x] == HALF_KNOWN
    assert [row.tolist() for row in reversed(x)] == HALF_KNOWN[::-1]
    for read in (len, list):
        with pytest.raises(TypeError, match="0-d tensor"):
            read(poisoned(1.0))
    with pytest.raises(TypeError, match=r"use \(masked == value\).any\(\)"):
        _ = 1.0 in x


def test_raw_data_passes_gradients_at_specified_entries_only() -> None:
    data = leaf(1.0, nan, inf)
    x = mg.masked(data, on(1, 0, 0))
    assert_entries(x.get_data(), [1.0, nan, inf])
    assert gradient(x.get_data(), data).tolist() == [1.0, 0.0, 0.0]
    assert x.get_mask() is x.mask


def test_instances_are_hashed_by_identity() -> None:
    x = poisoned([1.0, None])
    assert {x: "found"}[x] == "found"
    assert hash(x) != hash(mg.masked(x, on(1, 0)))
