"""Each optimizer that PyTorch has is PyTorch's class: hooks, state dicts, tensors as options, graphs through a step."""

from __future__ import annotations

import copy
import io
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.optimizers import OPTIONS, PAPERS, bits

CASES = {case: triple for case, triple in OPTIONS.items() if triple[1] not in PAPERS.values()}
OWN = {"Lion", "LAMB", "SparseAdam"}
every_case = pytest.mark.parametrize(("ours", "theirs", "options"), CASES.values(), ids=CASES.keys())


def twins(*shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    start = [torch.randn(shape) for shape in shapes]
    return [nn.Parameter(t.clone()) for t in start], [nn.Parameter(t.clone()) for t in start]


def give(*lists: list[nn.Parameter]) -> None:
    for same in zip(*lists, strict=True):
        grad = torch.randn_like(same[0])
        for param in same:
            param.grad = grad.clone()


def test_they_are_of_pytorchs_classes() -> None:
    for name in mg.optim.__all__:
        kind = getattr(mg.optim, name)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            theirs = getattr(torch.optim, name, None)
            assert name in OWN or issubclass(kind, theirs), name  # type: ignore[arg-type]
    assert isinstance(mg.optim.AdamW([nn.Parameter(torch.ones(1))]), (torch.optim.AdamW, torch.optim.Adam))
    assert not issubclass(mg.optim.SparseAdam, torch.optim.Adam)


@every_case
def test_states_go_both_ways_in_mid_run(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    """Names, dtypes and shapes are PyTorch's, and the run goes on bit for bit."""
    mine, reference = twins((4, 3), (5,))
    fused = {"fused": True} if theirs in FUSED else {}
    a, b = ours(mine, **options, **fused), theirs(reference, **options, **fused)
    for step in range(9):
        give(mine, reference)
        a.step()
        b.step()
        if step in (2, 5):
            mine_saved, saved = copy.deepcopy(a.state_dict()), copy.deepcopy(b.state_dict())
            for key, state in saved["state"].items():
                assert [*state] == [*mine_saved["state"][key]]
                for name, t in state.items():
                    got = mine_saved["state"][key][name]
                    assert (got.dtype, got.shape, got.device) == (t.dtype, t.shape, t.device)
            a, b = ours(mine, **options, **fused), theirs(reference, **options, **fused)
            a.load_state_dict(saved)
            b.load_state_dict(mine_saved)
    for p, q in zip(mine, reference, strict=True):
        assert torch.equal(bits(p), bits(q))


@every_case
def test_a_sparse_step_on_a_state_of_pytorchs_and_back(
    ours: Any, theirs: Any, options: dict[str, Any]
) -> None:
    mine, reference = twins((6, 2))
    a, b = ours(mine, **options), theirs(reference, **options)
    for step in range(6):
        give(mine, reference)
        if step % 2:  # all rows, listed
            mine[0].grad = mine[0].grad.to_sparse(1)  # type: ignore[union-attr]
        a.step()
        b.step()
        b_saved = copy.deepcopy(b.state_dict())
        if step == 3 and options.get("dampening", 0) == 0:
            b.load_state_dict(copy.deepcopy(a.state_dict()))
            a.load_state_dict(b_saved)
        torch.testing.assert_close(mine[0], reference[0], rtol=1e-4, atol=1e-5)


def test_hooks_run_once_however_often_pytorchs_class_was_made() -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 1))
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        kind([nn.Parameter(torch.ones(1))])  # wraps the step of its class
    optimizer = mg.optim.AdamW([p, q])
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(2):
        p.grad = torch.ones(3)
        q.grad = torch.ones(2, 1).to_sparse(1)
        optimizer.step()
    assert calls == ["before", "after"] * 2
    assert optimizer.state[p]["step"] == optimizer.state[q]["step"] == 2


def test_groups_and_gradients_are_as_before_when_pytorchs_step_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 1))
    optimizer = mg.optim.RMSprop([p, q])
    p.grad, q.grad = torch.ones(3), torch.ones(2, 1).to_sparse(1)
    groups, grads = optimizer.param_groups, (p.grad, q.grad)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["torch.optim.rmsprop"], "rmsprop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.param_groups is groups
    assert (p.grad, q.grad) == grads
    assert q.tolist() == [[1.0], [1.0]]


def test_a_closure_is_called_once() -> None:
    p, q = twins((3,))
    losses = []
    for optimizer, (param,) in ((mg.optim.Adam(p, lr=0.1), p), (torch.optim.Adam(q, lr=0.1), q)):

        def closure(optimizer: Any = optimizer, param: Tensor = param) -> Tensor:
            optimizer.zero_grad()
            loss = (param**2).sum()
            loss.backward()
            return loss

        losses += [optimizer.step(closure), optimizer.step(closure)]
    torch.testing.assert_close(losses[:2], losses[2:])


def test_a_learning_rate_in_a_tensor() -> None:
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop"):
        mine, reference = twins((3, 2))
        options: dict[str, Any] = {"lr": torch.tensor(0.1)}
        fused = {"fused": True} if name not in ("RMSprop",) else {}
        a, b = (
            getattr(mg.optim, name)(mine, **options),
            getattr(torch.optim, name)(reference, **options, **fused),
        )
        for _ in range(3):
            give(mine, reference)
            a.step()
            b.step()
            options["lr"].mul_(0.5)
        assert torch.equal(bits(mine[0]), bits(reference[0])), name


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_gradients_go_through_a_differentiable_step(name: str) -> None:
    found = []
    for library in (mg.optim, torch.optim):
        scale = torch.tensor(2.0, requires_grad=True)
        param = (scale * torch.tensor([1.0, -3.0])).clone()
        optimizer = getattr(library, name)([param], lr=0.1, differentiable=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # .grad of a tensor that is no leaf
            param.grad = torch.tensor([0.5, 2.0])
            optimizer.step()
        param.square().sum().backward()
        found.append(scale.grad)
    torch.testing.assert_close(*found)
    p = nn.Parameter(torch.ones(3, 1))
    p.grad = torch.ones(3, 1).to_sparse(1)
    with pytest.raises(ValueError, match="differentiable=True is available for dense gradients only"):
        getattr(mg.optim, name)([p], differentiable=True).step()
    assert p.tolist() == [[1.0]] * 3


def test_a_scaler_of_pytorch_unscales_before_the_step() -> None:
    """The optimizer does not claim that its step unscales, as PyTorch's fused ones do."""
    p = nn.Parameter(torch.ones(2))
    optimizer = mg.optim.Adam([p], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(p.grad, torch.ones(2))
    assert optimizer.state[p]["step"] == 1


def test_whole_optimizers_are_pickled() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer: MaskedOptimizer = mg.optim.AdamW([p])
    p.grad = torch.ones(2)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    (param,) = again.param_groups[0]["params"]
    param.grad = torch.ones(2)
    again.step()
    assert again.state[param]["step"] == 2
