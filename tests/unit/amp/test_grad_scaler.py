"""The scaler as a whole, against PyTorch's: scales, states, the order of calls, whole trainings."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.unit.amp.scalers import grad_dtype_exists, scaler

inf, nan = float("inf"), float("nan")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_it_is_a_scaler_of_torch() -> None:
    assert isinstance(scaler(), torch.amp.GradScaler)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "torch AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "torch AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "torch SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "mg SGD": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9),
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


def test_several_models_losses_and_optimizers_with_clipping_in_between() -> None:
    torch.manual_seed(1)
    nets = [nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 1)) for _ in range(2)]
    plain = copy.deepcopy(nets)
    build = [lambda p: mg.optim.Adagrad(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)]
    ours, theirs = ([b(n.parameters()) for b, n in zip(build, ns, strict=True)] for ns in (nets, plain))
    made = mg.amp.GradScaler("cpu", init_scale=2.0**10)
    x = torch.tensor([1, 1, 4, 5])
    for step in range(4):
        for group in (ours, theirs):
            for optimizer in group:
                optimizer.zero_grad()
        for ns, scale in ((nets, made.scale), (plain, lambda t: t)):
            a, b = (n(x).square().mean() for n in ns)
            scale(a + b).backward(retain_graph=True)
            scale(a * 0.5).backward()
        made.unscale_(ours[0])
        limits = [mg.clip_grad_norm_(n[0].parameters(), 0.1) for n in (nets[0], plain[0])]
        torch.testing.assert_close(*limits)
        if step == 2:  # an overflow of one model stops this model only
            nets[1][0].weight.grad = nets[1][0].weight.grad * inf
            theirs.pop()
        for optimizer in ours:
            made.step(optimizer)
        for optimizer in theirs:
            optimizer.step()
        made.update()
        if step == 2:
            break
    assert made.get_scale() == 2.0**9
    for net, reference in zip(nets, plain, strict=True):
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, q)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_the_sparse_gradient_of_an_embedding_survives_autocast(half: torch.dtype) -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 3)
    optimizer = mg.optim.Adagrad([*table.parameters(), *head.parameters()], lr=0.5)
    made = mg.amp.GradScaler("cpu", init_scale=2.0**10)
    before, losses = table.weight.detach().clone(), []
    rows, labels = torch.tensor([3, 3, 7, 9]), torch.tensor([0, 0, 1, 2])
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half):
            loss = nn.functional.cross_entropy(head(table(rows)).float(), labels)
        made.scale(loss).backward()
        assert table.weight.grad.is_sparse
        made.step(optimizer)
        made.update()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    moved = (table.weight.detach() != before).any(1).nonzero().view(-1)
    assert moved.tolist() == [3, 7, 9]


@pytest.mark.parametrize("accumulate", [False, grad_dtype_exists], ids=["one batch", "two micro-batches"])
def test_a_half_table_trains_through_the_scaler(accumulate: bool) -> None:
    table = nn.Embedding(5, 2, sparse=True, dtype=torch.float16)
    optimizer, made = mg.optim.SGD(table.parameters(), lr=1.0), mg.amp.GradScaler("cpu", init_scale=2.0**12)
    before = table.weight.detach().clone()
    if accumulate:  # PyTorch adds no float16 sparse gradients on the CPU; in float32 it does
        table.weight.grad_dtype = torch.float32
    for _ in range(1 + accumulate):
        made.scale((table(torch.tensor([1, 1, 2])) * 1e-3).sum().float()).backward()
    assert table.weight.grad.dtype == (torch.float32 if accumulate else torch.float16)
    made.step(optimizer)
    made.update()
    change = (before - table.weight.detach()).float()[:, 0]
    expected = torch.tensor([0.0, 2e-3, 1e-3, 0.0, 0.0]) * (1 + accumulate)
    torch.testing.assert_close(change, expected, atol=1e-3, rtol=0)
    assert made.get_scale() == 2.0**12


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


def test_the_scale_can_be_set() -> None:
    made = scaler()
    for value in (4.0, 16, torch.tensor(2.0)):
        made.update(value)
        assert made.get_scale() == float(value)


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
