"""PaddedRows: the COO gradient that it stands for, in slots whose number follows from sizes alone."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg

NAN, INF = float("nan"), float("inf")
GARBAGE = [NAN, INF, -INF, 1e38]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128]


def sample(
    lookups: int,
    height: int,
    row: tuple[int, ...] = (2,),
    dtype: torch.dtype = torch.float64,
    unused: float = 0.3,
) -> tuple[mg.PaddedRows, Tensor]:
    """A gradient with garbage in unused slots, and the COO tensor that lists what is in the others."""
    used = torch.rand(lookups) >= unused if height else torch.zeros(lookups, dtype=torch.bool)
    rows = torch.where(used, torch.randint(max(height, 1), (lookups,)), height)
    values = torch.randn(lookups, *row).to(dtype)
    for slot in (~used).nonzero()[:, 0].tolist():
        values[slot] = GARBAGE[slot % len(GARBAGE)]
    shape = (height, *row)
    coo = torch.sparse_coo_tensor(rows[used][None], values[used], shape, check_invariants=True)
    return mg.PaddedRows(rows, values, shape), coo


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("row", [(), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize(("lookups", "height"), [(0, 4), (1, 1), (7, 3), (5, 11), (13, 1), (3, 0)])
def test_stands_for_a_coo_tensor(lookups: int, height: int, row: tuple[int, ...], dtype: torch.dtype) -> None:
    gradient, coo = sample(lookups, height, row, dtype)
    expected = mg.sparse.coalesce(coo)
    merged = gradient.merged()
    number = expected._nnz()
    assert merged.capacity == min(lookups, height)
    assert merged.rows[:number].tolist() == expected.indices()[0].tolist()
    assert (merged.rows[number:] == height).all()
    assert merged.used.tolist() == [k < number for k in range(merged.capacity)]
    torch.testing.assert_close(merged.values[:number], expected.values())
    assert not merged.values[number:].any()
    assert merged.values.dtype is dtype
    assert gradient.to_dense().equal(merged.to_dense())
    torch.testing.assert_close(gradient.to_dense(), expected.to_dense())
    sparse = gradient.to_sparse_tensor()
    assert sparse.is_coalesced()
    assert torch.equal(sparse.indices(), expected.indices())
    if sparse.numel():
        masked = gradient.to_masked()
        assert torch.equal(masked.mask.flatten(1).any(1) if row else masked.mask, _specified(expected))


def _specified(coo: Tensor) -> Tensor:
    return torch.zeros(coo.shape[0], dtype=torch.bool).index_fill_(0, coo.indices()[0], True)


def test_halves_are_added_in_float32() -> None:
    rows = torch.zeros(4096, dtype=torch.int64)
    for dtype in (torch.float16, torch.bfloat16):
        gradient = mg.PaddedRows(rows, torch.ones(4096, 1, dtype=dtype), (2, 1))
        assert gradient.merged().values[0].item() == 4096
        assert gradient.to_dense().tolist() == [[4096.0], [0.0]]


def test_nothing_is_read_from_the_device() -> None:
    # What needs a number stops on fake tensors, as it would for a compiler.
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        gradient = mg.PaddedRows(torch.zeros(5, dtype=torch.int32), torch.ones(5, 2), (3, 2))
        merged = (gradient.merged() + gradient).resized(8).merged()
        assert tuple(merged.values.shape) == (3, 2)
        assert tuple(merged.to_dense().shape) == (3, 2)


def test_sums_and_capacities() -> None:
    (a, first), (b, second) = sample(5, 9), sample(4, 9)
    both = a.resized(7) + b.resized(20)
    assert both.capacity == both.listed == 9
    torch.testing.assert_close(both.to_dense(), first.to_dense() + second.to_dense())
    wide = both.resized(30)
    assert (wide.capacity, wide.listed) == (30, 9)
    assert wide.rows[9:].tolist() == [9] * 21
    torch.testing.assert_close(wide.to_dense(), both.to_dense())
    assert wide.merged().capacity == 9
    assert wide.merged().listed == 9
    many, coo = sample(50, 9)
    assert many.resized(9).capacity == 9
    torch.testing.assert_close(many.resized(9).to_dense(), coo.to_dense())
    with pytest.raises(
        ValueError, match=r"capacity=8 is too small .* up to 9 different rows.*number of rows, 9,"
    ):
        many.resized(8)
    with pytest.raises(ValueError, match=r"capacity=4 is too small .* 5 different rows"):
        a.resized(4)
    with pytest.raises(ValueError, match=r"shapes \(9, 2\) and \(3, 2\) cannot be added"):
        a + sample(2, 3)[0]
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


def test_from_sparse() -> None:
    dense = torch.tensor([[0.0, 1], [0, 0], [2, 3]])
    for given in (dense.to_sparse(1), mg.from_sparse(dense.to_sparse(1))):
        gradient = mg.PaddedRows.from_sparse(given, capacity=5)
        assert gradient.rows.tolist() == [0, 2, 3, 3, 3]
        assert gradient.to_dense().equal(dense)
    with pytest.raises(ValueError, match="capacity=1 is too small"):
        mg.PaddedRows.from_sparse(dense.to_sparse(1), capacity=1)
    for other in (dense.to_sparse(), dense.to_sparse_csr(), mg.masked(dense, dense != 0)):
        with pytest.raises(TypeError, match="must have whole rows"):
            mg.PaddedRows.from_sparse(other, capacity=5)


def test_mistakes_are_told() -> None:
    rows, values = torch.zeros(2, dtype=torch.int64), torch.ones(2, 3)
    wrong: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        (([0, 1], values, (4, 3)), TypeError, "rows must be an int64 or int32 tensor, found list"),
        ((rows.bool(), values, (4, 3)), TypeError, "found dtype torch.bool"),
        (
            (rows, values.long(), (4, 3)),
            TypeError,
            "values must be a floating-point or complex tensor, found dtype",
        ),
        ((rows, 1.0, (4, 3)), TypeError, "values must .* found float"),
        ((rows, values, ()), ValueError, "shape must have at least one dimension"),
        ((rows[None], values, (4, 3)), ValueError, r"rows must have one dimension, found shape \(1, 2\)"),
        (
            (rows, values, (4, 2)),
            ValueError,
            r"values must have shape \(2, 2\), one line for each of rows, found \(2, 3\)",
        ),
        ((rows, values.to("meta"), (4, 3)), ValueError, "rows are on cpu and values on meta"),
    ]
    for arguments, kind, message in wrong:
        with pytest.raises(kind, match=message):
            mg.PaddedRows(*arguments)
    for row in (-1, 5):
        outside = mg.PaddedRows(torch.tensor([0, row]), values, (4, 3))
        with pytest.raises(IndexError, match=f"index {row} of entry 1"):
            outside.to_sparse_tensor()
        param = torch.nn.Parameter(torch.ones(4, 3))
        mg.attach_gradient(param, outside)
        for refuse in (mg.optim.SGD([param], lr=1.0).step, lambda p=param: mg.clip_grad_norm_(p, 1.0)):
            with pytest.raises(IndexError, match=f"index {row} of entry 1"):
                refuse()
        assert param.detach().eq(1).all()


def test_kept_on_disk_and_copied() -> None:
    gradient, coo = sample(5, 4)
    for again in (pickle.loads(pickle.dumps(gradient)), copy.deepcopy(gradient)):
        assert torch.equal(again.to_dense(), coo.to_dense())
    assert repr(gradient) == "PaddedRows(capacity=5, shape=(4, 2), dtype=torch.float64, device='cpu')"


def test_clipping_halves_whose_sum_is_too_large_for_them() -> None:
    values = torch.tensor([[40000.0], [40000.0], [NAN]], dtype=torch.float16)
    gradient = mg.PaddedRows(torch.tensor([1, 1, 4]), values, (4, 1))
    param = torch.nn.Parameter(torch.zeros(4, 1, dtype=torch.float16))
    mg.attach_gradient(param, gradient)
    assert mg.clip_grad_norm_(param, 1.0).item() == 80000.0
    mg.optim.SGD([param], lr=1.0).step()
    assert param.detach()[1].item() == pytest.approx(-1.0, rel=1e-3)
    assert not param.detach()[[0, 2, 3]].any()


def test_what_lies_in_the_padding_is_zero_once_it_is_merged() -> None:
    """Where no size may depend on numbers, norms and the scaler look at all values."""
    merged = mg.PaddedRows(
        torch.tensor([1, 3, 1]), torch.tensor([[1.0], [float("nan")], [2.0]]), (3, 1)
    ).merged()
    assert merged.rows.tolist() == [1, 3, 3]
    assert merged.values.tolist() == [[3.0], [0.0], [0.0]]
