"""Update functions: the numbers of the mission, and what does not fit; suite/states.py has all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad import optim
from maskgrad.masked_tensor import masked
from maskgrad.optim.functional import adagrad_, rmsprop_, sgd_
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


def test_an_entry_starts_its_momentum_without_dampening() -> None:
    param, buffer, started = torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    options: dict[str, Any] = {"lr": 1.0, "momentum": 0.5, "dampening": 0.5, "started": started}
    sgd_(param, coo([[0]], [1.0], (3,)), buffer, **options)
    sgd_(param, masked(torch.ones(3), torch.tensor([True, True, False])), buffer, **options)
    assert (buffer.tolist(), started.tolist()) == ([1.0, 1.0, 0.0], [True, True, False])


def test_a_state_of_an_option_names_it() -> None:
    documented = str(rmsprop_.__doc__)
    assert "Required with ``momentum``." in documented
    assert documented.count("Required with") == 2


@pytest.mark.parametrize("state", ["full", "row"])
def test_a_large_masked_step_is_the_dense_one_where_it_is_specified(state: Any) -> None:
    """More entries than one piece of the engine; rows are not cut."""
    start, dense = torch.randn(300, 1000), torch.randn(300, 1000)
    mask = (torch.rand(300, 1 if state == "row" else 1000) < 0.5).expand(300, 1000)
    p, q = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    mg.attach_gradient(p, masked(dense, mask.contiguous()))
    q.grad = dense
    for t in (p, q):
        optim.Adagrad([t], lr=0.1, state=state).step()
    torch.testing.assert_close(p, torch.where(mask, q, start), rtol=1e-5, atol=1e-6)
    assert torch.equal(p[~mask], start[~mask])


@pytest.mark.parametrize(
    "declared", [d for d in DECLARED if d.ours is not optim.AdamW], ids=lambda d: d.ours.__name__
)
def test_states_that_do_not_fit_are_refused(declared: Declared) -> None:
    function = getattr(optim.functional, f"{declared.ours.__name__.lower()}_")
    good = [torch.ones(() if n in ("mu_product", "eta", "mu") else (3, 2)) for n in declared.states]
    options: dict[str, Any] = {"step": 1} if accepts(function, "step") else {}
    options |= {"momentum": 0.9} if accepts(function, "momentum") else {}
    param, grad = torch.ones(3, 2), torch.ones(3, 2)
    words = r"must be a (strided tensor like param, \(3, 2\)|tensor with one element)"
    for spoiled in range(len(good)):
        states = [*good[:spoiled], torch.zeros(4, 2), *good[spoiled + 1 :]]
        with pytest.raises(ValueError, match=words):
            function(param, grad, *states, **options)
    with pytest.raises(ValueError, match=r"gradient of param has shape \(2,\)"):
        function(param, torch.ones(2), *good, **options)
    if "step" in options:
        with pytest.raises(ValueError, match=r"step must be at least 1 \(the first step\), got 0"):
            function(param, grad, *good, **{**options, "step": 0})
    assert all(t.eq(1).all() for t in (param, *good))


def test_options_without_their_state_are_refused() -> None:
    ones, zeros, table = torch.ones(2), torch.zeros(2), torch.ones(2, 2)
    with pytest.raises(
        ValueError, match=r"a step with these options needs momentum_buffer, e\.g\. torch.zeros"
    ):
        sgd_(ones, ones, momentum=0.9)
    with pytest.raises(ValueError, match="state='row' is not available with centered=True"):
        rmsprop_(table, table, zeros[:, None], grad_avg=table)
    with pytest.raises(TypeError, match="started must be a Boolean tensor"):
        sgd_(ones, ones, zeros, momentum=0.9, started=zeros)
