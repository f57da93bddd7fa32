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


@every_kind
def test_adagrad_gives_the_numbers_of_the_mission(kind: Callable[[Tensor], Any]) -> None:
    param, state_sum = torch.arange(8.0).reshape(2, 4), torch.full((2, 4), 0.5)
    assert adagrad_(param, kind(GRAD), state_sum, lr=0.1, eps=1e-10) is param
    torch.testing.assert_close(param, PARAM, rtol=0, atol=1e-6)
    torch.testing.assert_close(state_sum, SUM, rtol=0, atol=0)
    untouched = GRAD == 0
    assert torch.equal(param[untouched], torch.arange(8.0).reshape(2, 4)[untouched])


def test_an_entry_starts_its_momentum_without_dampening() -> None:
    param, buffer, started = torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    options: dict[str, Any] = {"lr": 1.0, "momentum": 0.5, "dampening": 0.5, "started": started}
    sgd_(param, coo([[0]], [1.0], (3,)), buffer, **options)
    assert (buffer.tolist(), started.tolist()) == ([1.0, 0.0, 0.0], [True, False, False])
    sgd_(param, masked(torch.ones(3), torch.tensor([True, True, False])), buffer, **options)
    assert (buffer.tolist(), started.tolist()) == ([1.0, 1.0, 0.0], [True, True, False])
    sgd_(param, coo([[1, 1]], [1.0, 1.0], (3,)), buffer, **options)
    assert buffer.tolist() == [1.0, 1.5, 0.0]


def test_sgd_refuses_missing_or_misshapen_buffers() -> None:
    with pytest.raises(ValueError, match=r"needs momentum_buffer, e\.g\. torch.zeros_like"):
        sgd_(torch.ones(2), torch.ones(2), momentum=0.9)
    with pytest.raises(ValueError, match="nesterov=True needs momentum > 0 and dampening = 0"):
        sgd_(torch.ones(2), torch.ones(2), nesterov=True)
    with pytest.raises(ValueError, match=r"momentum_buffer must be a strided tensor like param, \(2,\)"):
        sgd_(torch.ones(2), torch.ones(2), torch.zeros(3), momentum=0.9)
    with pytest.raises(TypeError, match="started must be a Boolean tensor"):
        sgd_(torch.ones(2), torch.ones(2), torch.zeros(2), momentum=0.9, started=torch.zeros(2))


@pytest.mark.parametrize("order", ["contiguous", "transposed", "expanded mask"])
@pytest.mark.parametrize("state", ["full", "row"])
def test_a_large_masked_step_is_the_dense_one_where_it_is_specified(order: str, state: str) -> None:
    """More entries than one piece of the engine; rows are not cut."""
    start, dense = torch.randn(300, 1000), torch.randn(300, 1000)
    mask = torch.rand(300, 1 if order == "expanded mask" or state == "row" else 1000) < 0.5
    mask = mask.expand(300, 1000)
    p = torch.nn.Parameter(start.t().contiguous().t() if order == "transposed" else start.clone())
    q = torch.nn.Parameter(start.clone())
    a, b = (optim.Adagrad([t], lr=0.1, state=state) for t in (p, q))  # type: ignore[arg-type]
    mg.attach_gradient(p, masked(dense, mask))
    q.grad = dense
    a.step()
    b.step()
    torch.testing.assert_close(p, torch.where(mask, q, start), rtol=1e-5, atol=1e-6)
    assert torch.equal(p[~mask], start[~mask])


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
