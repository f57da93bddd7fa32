"""Masked functions on plain tensors: torch.masked's names, plain results, gradient exactly zero under the mask."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import gradient, inf, leaf, nan, on, poisoned

DATA, MASK = [[1.0, 4.0, nan], [inf, nan, -inf], [2.0, inf, 3.0]], on([1, 1, 0], [0, 0, 0], [1, 0, 1])


def test_counts_positions_and_masks_that_broadcast() -> None:
    count, data = mg.functional.count, torch.tensor(DATA)
    assert count(data, 1, mask=MASK).tolist() == [2, 0, 2]
    assert count(data, mask=MASK).item() == 4
    assert count(torch.zeros(2, 3), (0, 1), keepdim=True).tolist() == [[6]]
    assert mg.functional.argmax(data, 1, mask=MASK).tolist() == [1, 0, 2]  # in the whole row
    assert mg.functional.argmin(data, 1, mask=MASK).tolist() == [0, 0, 0]
    assert mg.functional.argmax(data, mask=MASK).item() == 1
    assert mg.functional.sum(torch.ones(2, 3), 1, mask=on([1, 0, 1])).tolist() == [2.0, 2.0]
    assert mg.functional.mean(torch.ones(2, 3), 0).tolist() == [1.0] * 3


#: What PyTorch gives for an empty tensor; of what it refuses, the neutral number. Arguments between data and mask.
NOTHING: dict[str, tuple[float, tuple[Any, ...]]] = {
    **dict.fromkeys(("mean", "median", "var", "std"), (nan, (1,))),
    "quantile": (nan, (0.5, 1)),
    "sum": (0, (1,)),
    "prod": (1, (1,)),
    "amax": (-inf, (1,)),
    "amin": (inf, (1,)),
    "logsumexp": (-inf, (1,)),
    **{f"norm {order}": (0, (order, 1)) for order in (0.0, 0.5, 1.0, 2.0, 3.0, inf)},
    **{f"norm {order}": (inf, (order, 1)) for order in (-1.0, -2.5, -inf)},
    **dict.fromkeys(("any", "count", "argmax", "argmin"), (0, (1,))),
    "all": (1, (1,)),
}
ALSO: dict[str, Any] = {
    "norm": torch.linalg.vector_norm,
    "count": torch.count_nonzero,
    "median": lambda x, dim: x.median(dim).values,
}
REFUSED_BY_TORCH = {"median", "quantile", "amax", "amin", "argmax", "argmin", "count", "norm inf"} | {
    f"norm {order}" for order in (-1.0, -2.5, -inf)
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")  # PyTorch's, of its own answer
@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize(
    ("columns", "dtype"), [(3, torch.float64), (3, torch.bfloat16), (70_001, torch.float32)]
)
def test_the_answer_to_nothing_is_that_of_an_empty_tensor(
    name: str, columns: int, dtype: torch.dtype
) -> None:
    value, order = NOTHING[name]
    refused, name = name in REFUSED_BY_TORCH, name.split()[0]
    dtype = torch.float32 if name == "quantile" and dtype is torch.bfloat16 else dtype
    data = torch.tensor([nan, inf, -inf], dtype=dtype)[torch.arange(columns) % 3].repeat(3, 1)
    mask = torch.zeros(3, columns, dtype=torch.bool)
    data[1, :2], mask[1, :2] = torch.tensor([1.0, 4.0], dtype=dtype), True
    x, reduced = data.requires_grad_(), getattr(mg.functional, name)
    result = reduced(x, *order, mask=mask)
    assert type(result) is torch.Tensor
    assert_close_to(result[[0, 2]], value)
    assert_close_to(reduced(x[0], *order[:-1], 0 if name == "median" else None, mask=mask[0]), value)
    function = ALSO.get(name) or getattr(torch, name)
    if not refused:
        assert_close_to(function(torch.empty(2, 0), *order), value)
    alone = x.detach()[1:2, :2].double().requires_grad_()
    expected = function(alone, *order)
    near = {"rtol": 8e-3, "atol": 8e-3} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(result[1:2], expected.to(result.dtype), **near)
    if result.requires_grad and order[0] != 0.0:  # the number of entries that are not 0 is constant
        found = gradient(result, x)
        assert not found[~mask].count_nonzero()
        torch.testing.assert_close(found[1:2, :2], gradient(expected, alone).to(dtype), **near)


def assert_close_to(result: torch.Tensor, value: float) -> None:
    expected = torch.full_like(result, value)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_integers_have_neither_nan_nor_infinities() -> None:
    for dtype in (torch.int64, torch.uint8):
        x, limits = torch.ones(2, 3, dtype=dtype), torch.iinfo(dtype)
        for name, value in {"amax": limits.min, "amin": limits.max, "median": limits.min}.items():
            found = getattr(mg.functional, name)(x, 1, mask=on([1], [0]))
            assert found.dtype == dtype
            assert found.tolist() == [1, value]
    assert mg.functional.mean(x, 1, dtype=torch.float32, mask=on(0)).isnan().all()


def test_dtypes_corrections_and_orders_are_arguments_as_in_torch() -> None:
    x, m = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)
    for name in ("sum", "mean", "prod", "var", "std", "amax", "amin", "norm"):
        assert getattr(mg.functional, name)(x, dtype=torch.float64, mask=m).dtype == torch.float64
    assert mg.functional.sum(x.int(), mask=m).dtype == torch.int64
    assert mg.functional.argmax(x, dtype=torch.float32, mask=m).dtype == torch.int64
    assert mg.functional.var(x, None, False, mask=m).item() == 1.0
    assert mg.functional.std(x, correction=0, mask=m).item() == 1.0
    assert mg.functional.norm(x, 1, mask=m).item() == 4.0
    assert mg.functional.norm(x, inf, mask=m).item() == 3.0
    assert mg.functional.quantile(x, 0.25, interpolation="lower", mask=m).item() == 1.0
    assert mg.functional.quantile(x, torch.tensor([0.0, 1.0]), mask=m).tolist() == [1.0, 3.0]
    assert mg.functional.median(x[None], 1, keepdim=True, mask=m[None]).shape == (1, 1)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "normalize", "cumsum", "cumprod"])
def test_each_row_is_treated_as_if_alone_and_so_is_its_gradient(name: str) -> None:
    data, order = leaf(*DATA), (2.0, 1) if name == "normalize" else (1,)
    function = getattr(F if name in ("softmin", "normalize") else torch, name)
    result = getattr(mg.functional, name)(data, *order, mask=MASK)
    assert type(result) is torch.Tensor
    grad = gradient(torch.where(MASK, result, 0).square(), data)
    assert not grad[~MASK].count_nonzero()
    for row in (0, 2):
        alone = data.detach()[row, MASK[row]][None].requires_grad_()
        expected = function(alone, *order)
        torch.testing.assert_close(result[row, MASK[row]], expected[0])
        torch.testing.assert_close(grad[row, MASK[row]], gradient(expected.square(), alone)[0])
    double = getattr(mg.functional, name)(data.half(), *order, dtype=torch.float64, mask=MASK)
    assert double.dtype == torch.float64
    with pytest.raises(IndexError, match="out of range"):
        getattr(mg.functional, name)(data, *order[:-1], dim=5)


def test_logaddexp_lets_an_unspecified_operand_take_no_part() -> None:
    x, y = leaf(0.0, nan, 1.0, inf), leaf(0.0, 2.0, -inf, nan)
    result = mg.functional.logaddexp(x, y, input_mask=on(1, 0, 1, 0), other_mask=on(1, 1, 0, 0))
    assert result[:3].tolist() == pytest.approx([math.log(2), 2.0, 1.0])
    assert gradient(result, x).tolist() == [0.5, 0.0, 1.0, 0.0]
    assert gradient(result, y).tolist() == [0.5, 1.0, 0.0, 0.0]
    assert mg.functional.logaddexp(torch.zeros(2, 1), torch.zeros(3)).shape == (2, 3)


#: Functions that need more arguments than a tensor.
NEED_MORE = {"cumprod", "cumsum", "log_softmax", "logaddexp", "normalize", "quantile", "softmax", "softmin"}


@pytest.mark.parametrize("name", sorted(set(mg.functional.__all__) - NEED_MORE))
def test_bad_input_is_refused_alike(name: str) -> None:
    """Other masks: tests/unit/patterns/test_mask_arguments.py."""
    function = getattr(mg.functional, name)
    with pytest.raises(TypeError, match=r"mask must be a Boolean torch.Tensor.*found list"):
        function(torch.zeros(3), mask=[True])
    with pytest.raises(ValueError, match=r"mask must be on the device"):
        function(torch.zeros(3, device="meta"), mask=on(1, 0, 1))
    with pytest.raises(
        TypeError, match=r"plain torch.Tensor, found MaskedTensor; .*methods of a MaskedTensor"
    ):
        function(poisoned([1.0, None]))
    with pytest.raises(IndexError, match="out of range"):
        function(torch.zeros(3), dim=1)
