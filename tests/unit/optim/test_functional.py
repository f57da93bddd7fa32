"""Update functions: the numbers of the mission, halves, and what does not fit; suite/states.py has all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad import optim
from maskgrad.masked_tensor import masked
from maskgrad.optim.functional import adagrad_, sgd_
from tests.unit.optim.kinds import coo, every_kind
from tests.unit.optim.optimizers import DECLARED, Declared, accepts

GRAD = torch.tensor([[0.0, 0, 3, 0], [4, 0, 5, 0]])
PARAM = torch.tensor([[0, 1, 1.902667, 3], [3.901527, 5, 5.900985, 7]])
SUM = torch.tensor([[0.5, 0.5, 9.5, 0.5], [16.5, 0.5, 25.5, 0.5]])
HALVES = [torch.float16, torch.bfloat16]


@every_kind
def test_adagrad_gives_the_numbers_of_the_mission(kind: Callable[[Tensor], Any]) -> None:
    param, state_sum = torch.arange(8.0).reshape(2, 4), torch.full((2, 4), 0.5)
    assert adagrad_(param, kind(GRAD), state_sum, lr=0.1, eps=1e-10) is param
    torch.testing.assert_close(param, PARAM, rtol=0, atol=1e-6)
    torch.testing.assert_close(state_sum, SUM, rtol=0, atol=0)
    untouched = GRAD == 0
    assert torch.equal(param[untouched], torch.arange(8.0).reshape(2, 4)[untouched])


def test_a_stored_zero_is_decayed_and_an_absent_entry_is_not() -> None:
    for grad in (coo([[0]], [0.0], (2,)), masked(torch.zeros(2), torch.tensor([True, False]))):
        param = torch.ones(2)
        sgd_(param, grad, lr=0.5, weight_decay=0.5)
        assert param.tolist() == [0.75, 1.0]


@pytest.mark.parametrize("dtype", HALVES)
@every_kind
def test_adagrad_in_half_precision_never_divides_by_zero(
    kind: Callable[[Tensor], Any], dtype: torch.dtype
) -> None:
    # eps = 1e-10 is 0 in float16: torch.optim.Adagrad gives 0 / 0 for a zero gradient.
    param, state_sum = torch.ones(2, 4, dtype=dtype), torch.zeros(2, 4, dtype=dtype)
    adagrad_(param, kind(GRAD.to(dtype)), state_sum, lr=0.5)
    assert param.dtype == dtype
    torch.testing.assert_close(param, torch.where(GRAD != 0, 0.5, 1.0).to(dtype))
    assert torch.equal(state_sum, (GRAD * GRAD).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_true_zeros_in_half_precision_do_not_divide_by_zero(dtype: torch.dtype) -> None:
    everywhere = torch.ones(2, 4, dtype=torch.bool)
    dense = GRAD.to(dtype)
    rows = coo([[1, 0]], GRAD.flip(0), (2, 4), dtype)
    for grad in (dense, masked(dense, everywhere), rows):
        param, state_sum = torch.ones(2, 4, dtype=dtype), torch.zeros(2, 4, dtype=dtype)
        adagrad_(param, grad, state_sum, lr=0.5)
        torch.testing.assert_close(param, torch.where(GRAD != 0, 0.5, 1.0).to(dtype))


def test_a_transposed_half_parameter_is_updated_in_float32() -> None:
    param = torch.zeros(2, 4, dtype=torch.float16).t()[:, :1]
    sgd_(param, coo([[1, 1]], [[40000.0], [40000.0]], (4, 1), torch.float16), lr=0.25)
    assert param.tolist() == [[0.0], [-20000.0], [0.0], [0.0]]


def test_an_entry_starts_its_momentum_without_dampening() -> None:
    param, buffer, started = torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    options: dict[str, Any] = {"lr": 1.0, "momentum": 0.5, "dampening": 0.5, "started": started}
    sgd_(param, coo([[0]], [1.0], (3,)), buffer, **options)
    assert (buffer.tolist(), started.tolist()) == ([1.0, 0.0, 0.0], [True, False, False])
    sgd_(param, masked(torch.ones(3), torch.tensor([True, True, False])), buffer, **options)
    assert (buffer.tolist(), started.tolist()) == ([1.0, 1.0, 0.0], [True, True, False])
    sgd_(param, coo([[1, 1]], [1.0, 1.0], (3,)), buffer, **options)
    assert buffer.tolist() == [1.0, 1.5, 0.0]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"eps": float("inf")}, "eps must be finite, got inf"),
        ({"lr_decay": -0.5}, "lr_decay must be at least 0, got -0.5"),
        ({"weight_decay": -0.5}, "weight_decay must be at least 0, got -0.5"),
        ({"step": 0}, "step must be at least 1"),
        ({"lr": torch.ones(2)}, r"lr must be a scalar, got a tensor of shape \(2,\)"),
    ],
)
def test_adagrad_refuses_numbers_out_of_range(numbers: dict[str, Any], words: str) -> None:
    param, state_sum = torch.ones(2), torch.ones(2)
    with pytest.raises(ValueError, match=words):
        adagrad_(param, torch.ones(2), state_sum, **numbers)
    assert (param.tolist(), state_sum.tolist()) == ([1.0, 1.0], [1.0, 1.0])


def test_sgd_needs_what_momentum_needs() -> None:
    with pytest.raises(ValueError, match=r"needs momentum_buffer, e\.g\. torch.zeros_like"):
        sgd_(torch.ones(2), torch.ones(2), momentum=0.9)
    with pytest.raises(ValueError, match="nesterov=True needs momentum > 0 and dampening = 0"):
        sgd_(torch.ones(2), torch.ones(2), nesterov=True)
    with pytest.raises(ValueError, match=r"momentum_buffer must be a strided tensor like param, \(2,\)"):
        sgd_(torch.ones(2), torch.ones(2), torch.zeros(3), momentum=0.9)
    with pytest.raises(TypeError, match="started must be a Boolean tensor"):
        sgd_(torch.ones(2), torch.ones(2), torch.zeros(2), momentum=0.9, started=torch.zeros(2))


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"state_sum must be a strided tensor like param, \(2,\)"):
        adagrad_(torch.ones(2), torch.ones(2), torch.ones(1))


@pytest.mark.parametrize("order", ["contiguous", "transposed", "expanded mask"])
def test_large_masked_updates_are_those_of_small_ones(order: str) -> None:
    # More entries than one piece of the engine.
    start, dense = torch.randn(300, 1000), torch.randn(300, 1000)
    mask = torch.rand(300, 1) < 0.5 if order == "expanded mask" else torch.rand(300, 1000) < 0.5
    mask = mask.expand(300, 1000)
    param, state_sum = start.clone(), torch.ones(300, 1000)
    if order == "transposed":
        param = start.t().contiguous().t()
    adagrad_(param, masked(dense, mask), state_sum, lr=0.1)
    expected, expected_sum = start.clone(), torch.ones(300, 1000)
    adagrad_(expected, dense, expected_sum, lr=0.1)
    torch.testing.assert_close(param, torch.where(mask, expected, start))
    torch.testing.assert_close(state_sum, torch.where(mask, expected_sum, 1.0))
    assert torch.equal(param[~mask], start[~mask])


@pytest.mark.parametrize("state", ["full", "row"])
def test_large_masked_steps_are_those_of_dense_ones(state: str) -> None:
    # Rows are not cut.
    start, gradient = torch.randn(300, 1000), torch.randn(300, 1000)
    p, q = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    a, b = (optim.Adam([param], lr=0.1, state=state) for param in (p, q))
    for _ in range(2):
        mg.attach_gradient(p, masked(gradient, torch.ones(300, 1000, dtype=torch.bool)))
        q.grad = gradient
        a.step()
        b.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "declared", [d for d in DECLARED if d.ours is not optim.AdamW], ids=lambda d: d.ours.__name__
)
def test_states_that_do_not_fit_are_refused(declared: Declared) -> None:
    function = getattr(optim.functional, f"{declared.ours.__name__.lower()}_")
    start = {"mu_product": 1.0, "mu": 1.0}
    good = [
        torch.full((), start.get(n, 0.1)) if n in ("mu_product", "eta", "mu") else torch.zeros(3, 2)
        for n in declared.states
    ]
    options: dict[str, Any] = {"step": 1} if accepts(function, "step") else {}
    options |= {"momentum": 0.9} if accepts(function, "momentum") else {}
    for spoiled in range(len(good)):
        param = torch.ones(3, 2)
        states = list(good)
        states[spoiled] = torch.zeros(4, 2)
        with pytest.raises(
            ValueError, match=r"must be a (strided tensor like param, \(3, 2\)|tensor with one element)"
        ):
            function(param, torch.ones(3, 2), *states, **options)
        assert param.tolist() == [[1.0, 1.0]] * 3
        assert all(not state.any() for state in good if state.dim())
    with pytest.raises(ValueError, match=r"gradient of param has shape \(2,\)"):
        function(torch.ones(3, 2), torch.ones(2), *good, **options)
    if "step" in options:
        with pytest.raises(ValueError, match=r"step must be at least 1 \(the first step\), got 0"):
            function(torch.ones(3, 2), torch.ones(3, 2), *good, **{**options, "step": 0})


def test_options_without_their_state_are_refused() -> None:
    with pytest.raises(ValueError, match="a step with these options needs momentum_buffer"):
        optim.functional.rmsprop_(torch.ones(2), torch.ones(2), torch.zeros(2), momentum=0.9)
    with pytest.raises(ValueError, match="state='row' is not available with centered=True"):
        optim.functional.rmsprop_(
            torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 1), grad_avg=torch.zeros(2, 2)
        )
