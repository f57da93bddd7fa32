"""The scaler as a whole, against PyTorch's: scales, states, the order of calls, whole trainings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.unit.amp.scalers import scaler

inf, nan = float("inf"), float("nan")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


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
        net, made = model(), kind("cpu", init_scale=4.0, growth_interval=3)
        optimizer = build(net.parameters())
        trace = []
        for step in range(12):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = net(x).square().mean()
            if step in (4, 5, 9):  # overflow now and then
                loss = loss * inf if step != 5 else loss * nan
            made.scale(loss).backward()
            if explicit:
                made.unscale_(optimizer)
            made.step(optimizer)
            made.update()
            trace.append((made.get_scale(), made._get_growth_tracker()))
        runs.append((trace, [p.detach().clone() for p in net.parameters()], made.state_dict()))
    (ours, mine, state), (theirs, wanted, expected) = runs[1], runs[0]
    assert ours == theirs
    assert len({scale for scale, _ in ours}) > 2
    assert state == expected
    for p, q in zip(mine, wanted, strict=True):
        assert torch.equal(p, q)


def test_a_masked_loss_with_missing_labels_starves_nothing() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer, made = mg.optim.SGD([w], lr=0.1), mg.amp.GradScaler("cpu", init_scale=2.0**16)
    target = mg.from_nan(torch.tensor([3.0, nan]))
    for _ in range(20):
        optimizer.zero_grad()
        made.scale(((w - target) ** 2).mean()).backward()  # a MaskedTensor is scaled as it is
        made.step(optimizer)
        made.update()
    torch.testing.assert_close(w.detach(), torch.tensor([3 - 2 * 0.8**20, 1.0]))
    assert made.get_scale() == 2.0**16


def test_what_is_scaled_keeps_its_container() -> None:
    made = mg.amp.GradScaler("cpu", init_scale=4.0)
    loss = mg.masked(torch.tensor(2.0), torch.tensor(True))
    assert made.scale(loss).item() == 8.0
    scaled = made.scale([loss, (torch.ones(2), loss)])
    assert type(scaled) is list
    assert type(scaled[1]) is tuple
    assert scaled[0].item() == 8.0
    assert scaled[1][0].tolist() == [4.0, 4.0]
    assert [x.item() for x in made.scale(iter([torch.tensor(1.0), loss]))] == [4.0, 8.0]
    with pytest.raises(ValueError, match="outputs must be a Tensor"):
        made.scale(3)
    unspecified = made.scale(mg.masked(torch.tensor(nan), torch.tensor(False)))
    assert not bool(unspecified.mask)


def test_calls_out_of_order() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = mg.optim.SGD([p], lr=0.1)
    fresh = mg.amp.GradScaler("cpu")
    p.grad = torch.ones(2)
    with pytest.raises(AssertionError, match="_scale is None"):
        fresh.unscale_(optimizer)
    made = scaler()
    made.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        made.unscale_(optimizer)
    made.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step"):
        made.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        made.step(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(made)
    made.update()
    for call in (
        lambda: made.step(optimizer, lambda: None),
        lambda: made.step(optimizer, closure=lambda: None),
    ):
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            call()
    p.grad = None
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        made.step(optimizer)


def test_disabled_it_only_steps() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer, made = mg.optim.SGD([p], lr=0.5), mg.amp.GradScaler("cpu", enabled=False)
    loss = mg.masked(torch.tensor(2.0), torch.tensor(True))
    assert made.scale(loss) is loss
    p.grad = torch.ones(2)
    made.unscale_(optimizer)
    assert made.step(optimizer, lambda: 7) == 7
    made.update()
    assert p.tolist() == [0.5, 0.5]
    assert made.get_scale() == 1.0
    assert not made.is_enabled()
    assert made.state_dict() == {}


def test_state_dicts_are_exchanged_with_torch_and_pickles_keep_the_scale() -> None:
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=32.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7
    )
    made = scaler()
    made.load_state_dict(theirs.state_dict())
    assert made.state_dict() == theirs.state_dict()
    assert made.get_scale() == 32.0
    back = torch.amp.GradScaler("cpu")
    back.load_state_dict(made.state_dict())
    assert back.state_dict() == made.state_dict()
    loaded = pickle.loads(pickle.dumps(made))
    assert type(loaded) is mg.amp.GradScaler
    assert loaded.state_dict() == made.state_dict()


def test_an_optimizer_that_unscales_by_itself_unscales_once() -> None:
    for explicit in (False, True):
        p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        mine, theirs = torch.optim.Adam([p], lr=0.1, fused=True), torch.optim.Adam([q], lr=0.1)
        made = scaler()
        p.grad, q.grad = torch.full((3,), 8.0), torch.ones(3)
        if explicit:
            made.unscale_(mine)
        made.step(mine)
        theirs.step()
        torch.testing.assert_close(mine.state[p]["exp_avg"], theirs.state[q]["exp_avg"])
        torch.testing.assert_close(p, q)
        made.update()
        p.grad = torch.tensor([1.0, nan, 1.0])
        made.step(mine)
        made.update()
        assert made.get_scale() == 4.0
        torch.testing.assert_close(p, q)
