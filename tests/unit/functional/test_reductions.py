"""Masked functions on plain tensors: torch.masked's names, plain results, gradient exactly zero under the mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import gradient, inf, leaf, nan, on, poisoned

DATA, MASK = [[1.0, 4.0, nan], [inf, nan, -inf], [2.0, inf, 3.0]], on([1, 1, 0], [0, 0, 0], [1, 0, 1])
ROWS = [[1.0, 4.0], None, [2.0, 3.0]]
ORACLES: dict[str, Any] = {
    name: getattr(torch, name) for name in ("sum", "mean", "prod", "var", "std", "amax", "amin", "any", "all")
} | {
    "norm": lambda row, dim: torch.linalg.vector_norm(row, 2, dim),
    "median": lambda row, dim: row.median(dim).values,
    "logsumexp": torch.logsumexp,
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_each_row_is_reduced_as_if_alone_and_so_is_its_gradient(name: str, keepdim: bool) -> None:
    data = leaf(*DATA)
    result = getattr(mg.functional, name)(data, dim=1, keepdim=keepdim, mask=MASK)
    assert type(result) is torch.Tensor
    assert result.shape == ((3, 1) if keepdim else (3,))
    grad = gradient(result, data) if result.requires_grad else torch.zeros(3, 3)
    assert grad[~MASK].tolist() == [0.0] * 5
    for got, slope, row, mask in zip(result.reshape(-1), grad, ROWS, MASK, strict=True):
        if row is not None:
            alone = leaf(*row)
            expected = ORACLES[name](alone, 0)
            torch.testing.assert_close(got, expected)
            if result.requires_grad:
                torch.testing.assert_close(slope[mask], gradient(expected, alone))


def test_the_number_of_specified_entries() -> None:
    assert mg.functional.count(torch.tensor(DATA), 1, mask=MASK).tolist() == [2, 0, 2]
    assert mg.functional.count(torch.tensor(DATA), mask=MASK).item() == 4
    assert mg.functional.count(torch.zeros(2, 3)).item() == 6
    assert mg.functional.count(torch.zeros(2, 3), (0, 1), keepdim=True).shape == (1, 1)


def test_positions_are_those_in_the_whole_row() -> None:
    assert mg.functional.argmax(torch.tensor(DATA), 1, mask=MASK).tolist() == [1, 0, 2]
    assert mg.functional.argmin(torch.tensor(DATA), 1, mask=MASK).tolist() == [0, 0, 0]
    assert mg.functional.argmax(torch.tensor(DATA), mask=MASK).item() == 1


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
    x = data.requires_grad_()

    def reduced(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return getattr(mg.functional, name)(x, *order, mask=mask)  # type: ignore[no-any-return]

    result = reduced(x, mask)
    assert_close_to(result[[0, 2]], value)
    assert not result[1].isnan()
    if not refused:
        function = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
        assert_close_to(function(torch.empty(2, 0), *order), value)
    if result.requires_grad and order[0] != 0.0:  # the number of entries that are not 0 is constant
        found = gradient(result, x)
        assert not found[~mask].count_nonzero()
        alone = x.detach()[1:2, :2].requires_grad_()
        torch.testing.assert_close(found[1, :2], gradient(reduced(alone, on([1, 1])), alone)[0])


def assert_close_to(result: torch.Tensor, value: float) -> None:
    expected = torch.full_like(result, value)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", NOTHING)
def test_so_it_is_in_a_graph_and_of_everything(name: str) -> None:
    value, order = NOTHING[name]

    def reduced(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return getattr(mg.functional, name.split()[0])(x, *order, mask=mask)  # type: ignore[no-any-return]

    x, mask = torch.tensor([[nan, inf, -inf], [1.0, nan, 3.0]]), on([0, 0, 0], [1, 0, 1])
    result = torch.compile(reduced, backend="aot_eager", fullgraph=True)(x, mask)
    assert_close_to(result[:1], value)
    torch.testing.assert_close(result[1:], reduced(x, mask)[1:])
    order = (0,) if name == "median" else (*order[:-1], None)  # of dim
    line = leaf(nan, inf)
    result = reduced(line, on(0))
    assert_close_to(result, value)
    if result.requires_grad and name != "norm 0.0":
        assert gradient(result, line).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["mean", "median", "amax", "amin", "var", "std", "logsumexp", "norm"])
def test_it_is_that_of_torch_masked(name: str) -> None:
    data, mask = torch.tensor([[1.0, 4.0], [2.0, 7.0]]), on([1, 1], [0, 0])
    order: tuple[Any, ...] = (2.0, 1) if name == "norm" else (1,)
    options = {"unbiased": True} if name in {"var", "std"} else {}
    found = getattr(mg.functional, name)(data, *order, mask=mask)
    expected = getattr(torch.masked, name)(data, *order, mask=mask, **options)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8])
def test_integers_have_neither_nan_nor_infinities(dtype: torch.dtype) -> None:
    x, limits = torch.ones(2, 3, dtype=dtype), torch.iinfo(dtype)
    values = {"amax": limits.min, "amin": limits.max, "median": limits.min}
    for name, value in values.items():
        found = getattr(mg.functional, name)(x, 1, mask=on([1], [0]))
        assert found.dtype == dtype
        assert found.tolist() == [1, value]
    assert torch.tensor([], dtype=torch.int64).median().item() == torch.iinfo(torch.int64).min
    assert mg.functional.mean(x, 1, dtype=torch.float32, mask=on(0)).isnan().all()


def test_without_a_mask_everything_is_specified_and_masks_broadcast() -> None:
    assert mg.functional.sum(torch.ones(2, 3)).item() == 6.0
    assert mg.functional.mean(torch.ones(2, 3), 0).tolist() == [1.0] * 3
    assert mg.functional.sum(torch.ones(2, 3), 1, mask=on([1, 0, 1])).tolist() == [2.0, 2.0]


def test_results_have_the_dtype_of_torch_or_that_asked_for() -> None:
    x, m = torch.tensor([1, 5, 2], dtype=torch.int32), on(1, 0, 1)
    assert mg.functional.sum(x, mask=m).dtype == torch.int64
    for name in ("sum", "mean", "prod", "var", "std", "amax", "amin", "norm"):
        wide = x.float() if name == "norm" else x
        assert getattr(mg.functional, name)(wide, dtype=torch.float64, mask=m).dtype == torch.float64
    assert mg.functional.argmax(x, dtype=torch.float32, mask=m).dtype == torch.int64


def test_corrections_and_orders_are_arguments_as_in_torch() -> None:
    x, m = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)
    assert mg.functional.var(x, None, False, mask=m).item() == 1.0
    assert mg.functional.std(x, correction=0, mask=m).item() == 1.0
    assert mg.functional.norm(x, 1, mask=m).item() == 4.0
    assert mg.functional.norm(x, inf, mask=m).item() == 3.0
    assert mg.functional.quantile(x, 0.25, interpolation="lower", mask=m).item() == 1.0
    assert mg.functional.quantile(x, torch.tensor([0.0, 1.0]), mask=m).tolist() == [1.0, 3.0]
    assert mg.functional.median(x[None], 1, keepdim=True, mask=m[None]).shape == (1, 1)


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
