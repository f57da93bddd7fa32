"""Masked functions on plain tensors: torch.masked's names, plain results, gradient exactly zero under the mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned

DATA, MASK = [[1.0, 4.0, nan], [inf, nan, -inf], [2.0, inf, 3.0]], on([1, 1, 0], [0, 0, 0], [1, 0, 1])
ROWS = [[1.0, 4.0], None, [2.0, 3.0]]
ORACLES: dict[str, Any] = {
    name: getattr(torch, name) for name in ("sum", "mean", "prod", "var", "std", "amax", "amin", "any", "all")
} | {"norm": lambda row, dim: torch.linalg.vector_norm(row, 2, dim)}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_each_row_is_reduced_as_if_alone(name: str, keepdim: bool) -> None:
    result = getattr(mg.functional, name)(leaf(*DATA), dim=1, keepdim=keepdim, mask=MASK)
    assert type(result) is torch.Tensor
    assert result.shape == ((3, 1) if keepdim else (3,))
    for got, row in zip(result.reshape(-1).tolist(), ROWS, strict=True):
        if row is not None:
            assert got == pytest.approx(ORACLES[name](torch.tensor(row).double(), 0).item())


@pytest.mark.parametrize("name", [name for name in ORACLES if name not in {"any", "all"}])
def test_gradients_are_those_of_each_row_alone(name: str) -> None:
    data = leaf(*DATA)
    grad = gradient(getattr(mg.functional, name)(data, dim=1, mask=MASK), data)
    assert grad[~MASK].tolist() == [0.0] * 5
    for got, row, mask in zip(grad, ROWS, MASK, strict=True):
        if row is not None:
            alone = leaf(*row)
            torch.testing.assert_close(got[mask], gradient(ORACLES[name](alone, 0), alone))


def test_the_number_of_specified_entries() -> None:
    assert mg.functional.count(torch.tensor(DATA), 1, mask=MASK).tolist() == [2, 0, 2]
    assert mg.functional.count(torch.tensor(DATA), mask=MASK).item() == 4
    assert mg.functional.count(torch.zeros(2, 3)).item() == 6
    assert mg.functional.count(torch.zeros(2, 3), (0, 1), keepdim=True).shape == (1, 1)


def test_positions() -> None:
    assert mg.functional.argmax(torch.tensor(DATA), 1, mask=MASK).tolist() == [1, 0, 2]
    assert mg.functional.argmin(torch.tensor(DATA), 1, mask=MASK).tolist() == [0, 0, 0]
    assert mg.functional.argmax(torch.tensor(DATA), mask=MASK).item() == 1


@pytest.mark.parametrize(
    ("name", "value"), [("sum", 0.0), ("prod", 1.0), ("any", 0.0), ("all", 1.0), ("count", 0), ("argmax", 0)]
)
def test_what_is_put_into_empty_slots(name: str, value: float) -> None:
    assert getattr(mg.functional, name)(torch.full((2, 2), nan), 1, mask=on(0)).tolist() == [value] * 2


def test_without_a_mask_everything_is_specified() -> None:
    assert mg.functional.sum(torch.ones(2, 3)).item() == 6.0
    assert mg.functional.mean(torch.ones(2, 3), 0).tolist() == [1.0] * 3


def test_masks_broadcast() -> None:
    assert mg.functional.sum(torch.ones(2, 3), 1, mask=on(1, 0, 1)).tolist() == [2.0, 2.0]
    assert mg.functional.sum(torch.ones(2, 3), 1, mask=on([1], [0])).tolist() == [3.0, 0.0]


def test_dtypes() -> None:
    x, m = torch.tensor([1, 5, 2], dtype=torch.int32), on(1, 0, 1)
    assert mg.functional.sum(x, mask=m).dtype == torch.int64
    for name in ("sum", "mean", "prod", "var", "std", "amax", "amin", "norm"):
        wide = x.float() if name == "norm" else x
        assert getattr(mg.functional, name)(wide, dtype=torch.float64, mask=m).dtype == torch.float64
    assert mg.functional.argmax(x, dtype=torch.float32, mask=m).dtype == torch.int64


def test_variants() -> None:
    x, m = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)
    assert mg.functional.var(x, None, False, mask=m).item() == 1.0
    assert mg.functional.std(x, correction=0, mask=m).item() == 1.0
    assert mg.functional.norm(x, 1, mask=m).item() == 4.0
    assert mg.functional.norm(x, inf, mask=m).item() == 3.0


#: Functions that need more arguments than a tensor.
NEED_MORE = {"cumprod", "cumsum", "log_softmax", "logaddexp", "normalize", "quantile", "softmax", "softmin"}


@pytest.mark.parametrize("name", sorted(set(mg.functional.__all__) - NEED_MORE))
def test_bad_input_is_refused_alike(name: str) -> None:
    function = getattr(mg.functional, name)
    with pytest.raises(TypeError, match=r"mask must have dtype torch.bool .*found torch.float32"):
        function(torch.zeros(3), mask=torch.ones(3))
    with pytest.raises(TypeError, match=r"mask must be a Boolean torch.Tensor.*found list"):
        function(torch.zeros(3), mask=[True])
    with pytest.raises(ValueError, match=r"mask must broadcast"):
        function(torch.zeros(3), mask=on(1, 0))
    with pytest.raises(ValueError, match=r"mask must be on the device"):
        function(torch.zeros(3, device="meta"), mask=on(1, 0, 1))
    with pytest.raises(TypeError, match=r"plain torch.Tensor, found MaskedTensor; .*as methods"):
        function(poisoned([1.0, None]))
    with pytest.raises(IndexError, match="out of range"):
        function(torch.zeros(3), dim=1)


def test_inside_vmap() -> None:
    sums = torch.vmap(lambda row, m: mg.functional.mean(row, mask=m))(torch.tensor(DATA), MASK)
    assert_entries(sums[[0, 2]], [2.5, 2.5])
