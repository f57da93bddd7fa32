"""Dense gradients are PyTorch's: its ways, bit for bit, whatever has happened to parameters and states since."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.optimizers import OPTIONS, PAPERS, bits, same_way

SHAPES = [(4, 3), (5,), (), (2, 3, 2), (0, 3)]


def pairs(shapes: Any = SHAPES, dtype: torch.dtype = torch.float32) -> tuple[list[Any], list[Any]]:
    start = [torch.randn(shape).to(dtype) for shape in shapes]
    mine, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    return mine, theirs


def give(mine: list[Any], theirs: list[Any]) -> None:
    for p, q in zip(mine, theirs, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()


def run(a: Any, b: Any, mine: list[Any], theirs: list[Any], steps: int = 3) -> None:
    for _ in range(steps):
        give(mine, theirs)
        a.step()
        b.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(bits(p), bits(q))


WAYS: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"fused": False}, {}]
ASKED = [
    pytest.param(*case, way, id=f"{name}-{way}")
    for name, case in OPTIONS.items()
    for way in WAYS
    if case[1] not in PAPERS.values() and ("fused" not in way or case[1] in FUSED)  # what PyTorch has
]


@pytest.mark.parametrize(("ours", "theirs", "options", "way"), ASKED)
def test_the_way_that_is_asked_for_is_taken(
    ours: Callable[..., MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
    way: dict[str, bool],
) -> None:
    mine, reference = pairs()
    asked = way or same_way(theirs)
    if way == {"fused": False}:
        asked = {"fused": False, "foreach": True}  # some small parameters
    run(ours(mine, **options, **way), theirs(reference, **options, **asked), mine, reference)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_memory_in_another_order(kind: str) -> None:
    """PyTorch's fused loops take it for the same order, and are wrong: such parameters go one by one."""
    options = {"momentum": 0.9, "lr": 0.1} if kind == "SGD" else {}
    for turned in ("gradient", "parameter", "both", "strided"):
        start = torch.randn(4, 3)
        p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        if turned in ("parameter", "both"):
            p = nn.Parameter(start.t().contiguous().t())
        if turned == "strided":
            p = nn.Parameter(start.repeat_interleave(2, 1)[:, ::2])
        a, b = getattr(mg.optim, kind)([p], **options), getattr(torch.optim, kind)([q], **options)
        for _ in range(4):
            gradient = torch.randn(4, 3)
            q.grad = gradient
            p.grad = gradient.t().contiguous().t() if turned in ("gradient", "both") else gradient.clone()
            a.step()
            b.step()
        torch.testing.assert_close(p, q)


def adam(params: Any, **options: Any) -> MaskedOptimizer:
    return mg.optim.Adam(params, lr=0.1, **options)


def torch_adam(params: Any, **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(params, lr=0.1, fused=True, **options)


def replace_a_tensor(optimizer: Any, param: Tensor) -> None:
    optimizer.state[param]["exp_avg"] = torch.ones_like(param)


def replace_a_state(optimizer: Any, param: Tensor) -> None:
    optimizer.state[param] = {name: 2 * t for name, t in optimizer.state[param].items()}


def forget(optimizer: Any, param: Tensor) -> None:
    del optimizer.state[param]


def forget_all(optimizer: Any, param: Tensor) -> None:
    optimizer.state.clear()


def other_rate(optimizer: Any, param: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = 0.03


def amsgrad(optimizer: Any, param: Tensor) -> None:
    optimizer.param_groups[0]["amsgrad"] = True
    for p in optimizer.param_groups[0]["params"]:
        optimizer.state[p]["max_exp_avg_sq"] = torch.zeros_like(p)


def other_memory(optimizer: Any, param: Tensor) -> None:
    param.data = param.data.clone()


def count_in_other_memory(optimizer: Any, param: Tensor) -> None:
    optimizer.state[param]["step"].data = torch.tensor(40.0)


def loaded(optimizer: Any, param: Tensor) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][1]["exp_avg"] += 1
    optimizer.load_state_dict(state)


def rate_in_a_tensor(optimizer: Any, param: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)


def one_more(optimizer: Any, param: Tensor) -> None:
    optimizer.param_groups[0]["params"].reverse()


@pytest.mark.parametrize(
    "change",
    [replace_a_tensor, replace_a_state, forget, forget_all, other_rate, amsgrad, other_memory,
     count_in_other_memory, loaded, rate_in_a_tensor, one_more],
)  # fmt: skip
def test_what_has_changed_since_is_noticed(change: Callable[[Any, Tensor], None]) -> None:
    mine, reference = pairs()
    a, b = adam(mine), torch_adam(reference)
    run(a, b, mine, reference)
    change(a, mine[1])
    change(b, reference[1])
    run(a, b, mine, reference)
    if change is rate_in_a_tensor:
        for optimizer in (a, b):
            optimizer.param_groups[0]["lr"].fill_(0.01)
        run(a, b, mine, reference)


def test_counts_are_those_of_the_optimizer() -> None:
    """They are raised where they lie: who holds one of them sees it."""
    mine, reference = pairs()
    optimizer = adam(mine)
    give(mine, reference)
    optimizer.step()
    held = optimizer.state[mine[1]]["step"]
    for step in range(2, 6):
        give(mine, reference)
        optimizer.step()
        assert held is optimizer.state[mine[1]]["step"]
        assert held == step
    torch.set_default_dtype(torch.float64)
    try:
        mine, reference = pairs()
        run(adam(mine), torch_adam(reference), mine, reference, 5)
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_way_from_now_on() -> None:
    mine, reference = pairs()
    a, b = adam(mine), torch_adam(reference)
    run(a, b, mine, reference)
    for optimizer in (a, b):
        optimizer.param_groups[0] |= {"fused": False, "foreach": True}
    run(a, b, mine, reference)
    for optimizer in (a, b):
        optimizer.param_groups[0] |= {"fused": True, "foreach": False}
    run(a, b, mine, reference)


def test_memory_that_is_turned_in_place() -> None:
    p, q = (nn.Parameter(torch.arange(9.0).view(3, 3)) for _ in range(2))
    a, b = adam([p]), torch.optim.Adam([q], lr=0.1, foreach=False)
    for step in range(6):
        if step == 3:
            with torch.no_grad():
                for x in (p, q):
                    x.t_()
        p.grad = torch.randn(3, 3)
        q.grad = p.grad.clone()
        a.step()
        b.step()
        torch.testing.assert_close(p, q)


def test_a_learning_rate_of_each_step() -> None:
    mine, reference = pairs()
    a, b = adam(mine), torch_adam(reference)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (a, b)]
    for _ in range(4):
        run(a, b, mine, reference, 1)
        for schedule in schedules:
            schedule.step()


@pytest.mark.parametrize("unspecified", ["skip", "zero"])
def test_dense_and_sparse_gradients_in_turns(unspecified: Any) -> None:
    torch.manual_seed(4)
    mine, reference = pairs([(6, 2), (3,)])
    a, b = adam(mine, unspecified=unspecified), torch_adam(reference)
    for step in range(12):
        give(mine, reference)
        if step % 3 == 1:  # every row, listed
            mine[0].grad = mine[0].grad.to_sparse(1)
        if step % 3 == 2 and unspecified == "zero":
            rows = torch.tensor([1, 4, 1])
            mine[0].grad = torch.sparse_coo_tensor(rows[None], torch.randn(3, 2), (6, 2))
            reference[0].grad = mine[0].grad.to_dense()
        a.step()
        b.step()
    a.flush()
    for p, q in zip(mine, reference, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_entries_that_are_not_trained_stay() -> None:
    mine, reference = pairs([(4,), (3,)])
    a = adam(mine)
    give(mine, reference)
    a.step()
    mg.train_only(mine[0], torch.tensor([True, False, True, False]))
    before = mine[0].detach().clone()
    for _ in range(3):
        give(mine, reference)
        a.step()
    assert (mine[0].detach() == before).tolist() == [False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    mine, reference = pairs([(40,), (3, 5)], dtype)
    wide = [nn.Parameter(q.detach().float()) for q in reference]
    a, b = adam(mine), torch_adam(wide)
    for p, q in zip(mine, wide, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.float()
    a.step()
    b.step()
    for p, q in zip(mine, wide, strict=True):
        torch.testing.assert_close(p.float(), q.to(dtype).float(), rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_a_state_in_another_half_is_no_reason_to_stop(name: str) -> None:
    # PyTorch's fused loops count the step, and find the dtype then
    options: dict[str, Any] = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    key = {"SGD": "momentum_buffer", "Adagrad": "sum"}.get(name, "exp_avg")
    found = []
    for number in (1, 6):  # one look at each, and one at all
        params = [nn.Parameter(torch.ones(2, 2, dtype=torch.float16)) for _ in range(number)]
        optimizer = getattr(mg.optim, name)(params, **options)
        for step in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
                if step:
                    optimizer.state[p][key] = optimizer.state[p][key].bfloat16()
            optimizer.step()
        found += [p.detach() for p in params]
    assert all(torch.equal(p, found[0]) for p in found)
    assert bool((found[0] < 0.95).all())


def test_hooks_are_called_once_and_refusals_leave_everything() -> None:
    calls: list[str] = []
    mine, reference = pairs([(4,), (3,)])
    a = adam(mine)
    a.register_step_pre_hook(lambda *_: calls.append("before"))
    a.register_step_post_hook(lambda *_: calls.append("after"))
    everywhere = register_optimizer_step_pre_hook(lambda *_: calls.append("any"))
    try:
        give(mine, reference)
        a.step()
    finally:
        everywhere.remove()
    assert sorted(calls) == ["after", "any", "before"]
    give(mine, reference)
    before = [p.detach().clone() for p in mine], copy.deepcopy(a.state_dict())
    mine[1].grad = torch.sparse_coo_tensor([[7]], [1.0], (3,), check_invariants=False)
    with pytest.raises(IndexError):
        a.step()
    assert all(torch.equal(p, q) for p, q in zip(mine, before[0], strict=True))
    for position, state in before[1]["state"].items():
        for name, t in state.items():
            assert torch.equal(a.state_dict()["state"][position][name], t)


def test_copies_and_files() -> None:
    mine, reference = pairs([(4,), (3,)])
    a = adam(mine)
    give(mine, reference)
    a.step()
    copied = copy.deepcopy(a)
    assert "_prepared" not in copied.__dict__
    file = io.BytesIO()
    torch.save(a.state_dict(), file)
    file.seek(0)
    a.load_state_dict(torch.load(file, weights_only=True))
    give(mine, reference)
    a.step()
    assert a.state[mine[0]]["step"] == 2


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("shape", [(100, 4), (25, 4), (4, 50)])
def test_a_parameter_that_changes_its_shape_in_the_same_memory(kind: str, shape: tuple[int, int]) -> None:
    """Neither its states nor its gradient fit then: nobody may run past their ends."""
    memory = torch.zeros(100, 4)
    for late in (False, True):
        p = nn.Parameter(memory[:50])
        optimizer = getattr(mg.optim, kind)([p], lr=0.1)
        for _ in range(2):
            p.grad = torch.ones(50, 4)
            optimizer.step()
        p.data = torch.as_strided(memory, shape, (shape[1], 1))
        if late:
            p.grad = None
            p.grad = torch.ones(shape)
        if late and kind == "SGD":  # it has no state
            optimizer.step()
            continue
        before = memory.clone()
        with pytest.raises(ValueError, match=r"shape \(50, 4\)"):
            optimizer.step()
        assert torch.equal(memory, before)
