"""The scaler as a whole, against PyTorch's: scales, states, the order of calls, whole trainings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

inf, nan = float("inf"), float("nan")


def scaler(scale: float = 8.0) -> mg.amp.GradScaler:
    """A scaler that has seen a loss."""
    made = mg.amp.GradScaler("cpu", init_scale=scale)
    made.scale(torch.zeros(()))
    return made


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "torch AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "mg AdamW": lambda p: mg.optim.AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("explicit", [False, True], ids=["in step", "unscale_"])
def test_dense_gradients_are_treated_as_torch_does_bit_for_bit(build: Any, explicit: bool) -> None:
    runs = []
    for kind in (torch.amp.GradScaler, mg.amp.GradScaler):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        made = kind("cpu", init_scale=4.0, growth_interval=3)
        optimizer = build(net.parameters())
        trace = []
        for step in range(12):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = net(x).square().mean()
            overflow = {4: inf, 5: nan, 9: inf}.get(step, 1.0)
            made.scale(loss * overflow).backward()
            if explicit:
                made.unscale_(optimizer)
            made.step(optimizer)
            made.update()
            trace.append((made.get_scale(), made._get_growth_tracker()))
        assert len({scale for scale, _ in trace}) > 2
        runs.append((trace, made.state_dict(), nn.utils.parameters_to_vector(net.parameters()).tolist()))
    assert runs[0] == runs[1]


def test_what_is_scaled_keeps_its_container() -> None:
    made, loss = scaler(4.0), mg.masked(torch.tensor(2.0), torch.tensor(True))
    first, (second, third) = made.scale([loss, (torch.ones(2), loss)])
    assert (first.item(), second.tolist(), third.item()) == (8.0, [4.0, 4.0], 8.0)
    assert [type(made.scale(many([loss]))) for many in (list, tuple)] == [list, tuple]
    assert [x.item() for x in made.scale(iter([torch.tensor(1.0), loss]))] == [4.0, 8.0]
    assert not made.scale(mg.masked(torch.tensor(nan), torch.tensor(False))).mask
    with pytest.raises(ValueError, match="outputs must be a Tensor"):
        made.scale(3)


def test_calls_out_of_order() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer, made = mg.optim.SGD([p], lr=0.1), scaler()
    p.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        made.step(optimizer, lambda: None)
    made.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        made.step(optimizer)


def test_disabled_it_only_steps() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer, made = mg.optim.SGD([p], lr=0.5), mg.amp.GradScaler("cpu", enabled=False)
    p.grad = made.scale(torch.ones(2))
    made.unscale_(optimizer)
    assert made.step(optimizer, lambda: 7) == 7
    assert p.tolist() == [0.5, 0.5]


def test_state_dicts_are_exchanged_with_torch_and_pickles_keep_the_scale() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=32.0, growth_factor=3.0, growth_interval=7)
    made = scaler()
    made.load_state_dict(theirs.state_dict())
    back = torch.amp.GradScaler("cpu")
    back.load_state_dict(made.state_dict())
    assert back.state_dict() == theirs.state_dict()
    loaded = pickle.loads(pickle.dumps(made))
    assert type(loaded) is mg.amp.GradScaler
    assert loaded.state_dict() == made.state_dict()


@pytest.mark.parametrize("explicit", [False, True], ids=["in step", "unscale_"])
def test_an_optimizer_that_unscales_by_itself_unscales_once(explicit: bool) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    mine, theirs = torch.optim.Adam([p], lr=0.1, fused=True), torch.optim.Adam([q], lr=0.1)
    made = scaler()
    p.grad, q.grad = torch.full((3,), 8.0), torch.ones(3)
    if explicit:
        made.unscale_(mine)
    made.step(mine)
    theirs.step()
    torch.testing.assert_close(mine.state[p]["exp_avg"], theirs.state[q]["exp_avg"])
    made.update()
    p.grad = torch.tensor([1.0, nan, 1.0])
    made.step(mine)
    made.update()
    assert made.get_scale() == 4.0
    torch.testing.assert_close(p, q)
