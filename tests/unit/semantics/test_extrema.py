"""Extrema: of the specified entries, even where those are infinite; gradients shared among equals."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, nan, on, poisoned

X = [[1.0, None, 4.0], [None, None, None], [2.0, 2.0, None]]


def test_values() -> None:
    x = poisoned(X)
    assert_entries(x.amax(1), [4.0, None, 2.0])
    assert_entries(x.amin(1), [1.0, None, 2.0])
    assert_entries(x.amax(), 4.0)
    assert_entries(x.amin((0, 1), keepdim=True), [[1.0]])
    assert_entries(x.max(), 4.0)
    low, high = x.aminmax(dim=1)
    assert_entries(low, [1.0, None, 2.0])
    assert_entries(high, [4.0, None, 2.0])


def test_gradients_are_shared_among_equals() -> None:
    x = poisoned(X, requires_grad=True)
    assert gradient(x.amax(1), x).tolist() == [[0.0, 0.0, 1.0], [0.0] * 3, [0.5, 0.5, 0.0]]
    assert gradient(x.amin(1), x).tolist() == [[1.0, 0.0, 0.0], [0.0] * 3, [0.5, 0.5, 0.0]]
    assert gradient(x.max(1).values, x).tolist() == [[0.0, 0.0, 1.0], [0.0] * 3, [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("hidden", [4.0, 9.0, inf])
def test_an_equal_under_the_mask_gets_and_takes_no_share(hidden: float) -> None:
    data = torch.tensor([1.0, hidden, 4.0], dtype=torch.float64, requires_grad=True)
    x = mg.masked(data, on(1, 0, 1))
    assert gradient(x.amax(), data).tolist() == gradient(x.max(0).values, data).tolist() == [0.0, 0.0, 1.0]
    assert_entries(x.argmax(), 2)


def test_specified_infinities_are_not_mistaken_for_nothing() -> None:
    x = poisoned([[-inf, None, -inf]], requires_grad=True)
    assert_entries(x.amax(1), [-inf])
    assert gradient(x.amax(1), x).tolist() == [[0.5, 0.0, 0.5]]
    assert_entries(poisoned([None, -inf]).argmax(), 1)
    assert_entries(poisoned([None, inf]).argmin(), 1)
    limits = torch.iinfo(torch.int64)
    assert_entries(poisoned([None, limits.min], torch.int64).argmax(), 1)


def test_positions_count_in_the_original_tensor() -> None:
    x = poisoned(X)
    assert_entries(x.argmax(1), [2, None, 0], dtype=torch.int64)
    assert_entries(x.argmin(0), [0, 2, 0])
    assert_entries(x.argmax(), 2)
    assert_entries(x.argmax(keepdim=True), [[2]])
    assert_entries(x.argmin(1, keepdim=True), [[0], [None], [0]])
    assert_entries(poisoned(3.0).argmax(0), 0)


def test_values_with_positions() -> None:
    found = poisoned(X).max(dim=1)
    assert type(found) is torch.return_types.max
    assert_entries(found.values, [4.0, None, 2.0])
    assert_entries(found.indices, [2, None, 0])
    values, indices = torch.min(poisoned(X), 1, keepdim=True)
    assert_entries(values, [[1.0], [None], [2.0]])
    assert_entries(indices, [[0], [None], [0]])


def test_of_two_tensors() -> None:
    a, b = poisoned([1.0, None, 5.0], requires_grad=True), torch.tensor([3.0, 2.0, nan]).double()
    assert_entries(torch.max(a, b), [3.0, None, nan])
    assert_entries(a.min(poisoned([0.0, 1.0, None])), [0.0, None, None])
    assert gradient(torch.max(a, torch.full((3,), 2.0).double()), a).tolist() == [0.0, 0.0, 1.0]


def test_a_specified_nan_wins_as_in_torch() -> None:
    x = poisoned([1.0, None, nan])
    assert_entries(x.amax(), nan)
    assert_entries(x.argmax(), 2)
    assert_entries(x.max(0).indices, 2)


@pytest.mark.parametrize("values", [[1.0, nan, 3.0], [nan, 2.0, nan], [nan] * 3, [inf, nan, -inf]])
@pytest.mark.parametrize("hidden", [nan, inf, -inf])
@pytest.mark.parametrize("largest", [False, True])
def test_equal_nan_share_the_gradient_of_everything(
    values: list[float], hidden: float, largest: bool
) -> None:
    plain = torch.tensor(values, requires_grad=True)
    (expected,) = torch.autograd.grad(plain.max() if largest else plain.min(), plain)
    leaf = torch.tensor([*values, hidden], requires_grad=True)
    x = mg.masked(leaf, on(1, 1, 1, 0))

    def extremum(leaf: torch.Tensor) -> torch.Tensor:
        x = mg.masked(leaf, on(1, 1, 1, 0))
        return (x.max() if largest else x.min()).filled(0)

    assert (x.max() if largest else x.min()).filled(0).isnan()
    assert torch.autograd.grad(extremum(leaf), leaf)[0].tolist() == [*expected.tolist(), 0.0]
    assert torch.func.grad(extremum)(leaf.detach()).tolist() == [*expected.tolist(), 0.0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    x = poisoned([False, None, True] if dtype == torch.bool else [0, None, 1], dtype)
    assert_entries(x.amax(), 1, dtype=dtype)
    assert_entries(x.amin(), 0, dtype=dtype)
    assert_entries(x.argmax(), 2)


def test_complex_numbers_have_no_extrema() -> None:
    with pytest.raises(RuntimeError, match="not defined for complex"):
        poisoned([1j, None], torch.complex64).amax()


def test_bad_dimensions() -> None:
    for call in (lambda x: x.amax(2), lambda x: x.argmax(2), lambda x: x.max(-3)):
        with pytest.raises(IndexError):
            call(poisoned(X))


def test_second_derivatives_and_vmap() -> None:
    data = torch.tensor([2.0, nan, 3.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        (mg.masked(data, on(1, 0, 1)).amax() ** 2).filled(0.0), data, create_graph=True
    )
    assert gradient(first, data).tolist() == [0.0, 0.0, 2.0]
    assert_entries(torch.vmap(lambda row: row.amax())(poisoned(X)), [4.0, None, 2.0])
