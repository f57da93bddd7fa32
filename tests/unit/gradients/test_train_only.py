"""The mask goes where its parameter goes, and the guard around steps puts everything back."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as hooks

import maskgrad as mg
from tests.ranks import exit_code_of
from tests.unit.optim.kinds import coo, whole


def through_torch_save(module: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=isinstance(module, nn.Parameter))


COPIES: dict[str, Callable[[nn.Linear], Any]] = {
    "a copy": lambda module: copy.deepcopy(module).weight,
    "a copy of the parameter": lambda module: copy.deepcopy(module.weight),
    "a file": lambda module: through_torch_save(module).weight,
    "a file of the parameter": lambda module: through_torch_save(module.weight),
    "another dtype": lambda module: module.double().weight,
}


@pytest.mark.parametrize("name", COPIES)
def test_the_mask_goes_where_the_parameter_goes(name: str) -> None:
    module = nn.Linear(2, 3, bias=False)
    mg.train_only(module.weight, torch.tensor([[True], [False], [True]]))
    other = COPIES[name](module)
    if other is not module.weight:
        assert other.data_ptr() != module.weight.data_ptr()
        mg.train_only(module.weight, None)
    for param in (other, copy.deepcopy(other)):
        before = param.detach().clone()
        param.grad = torch.ones_like(param)
        torch.optim.SGD([param], lr=0.1, weight_decay=0.1).step()
        assert (param.detach() != before).any(1).tolist() == [True, False, True]


def test_a_step_that_raises_leaves_gradient_and_parameter() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    mg.train_only(p, torch.tensor([True, False]))
    optimizer = torch.optim.SparseAdam([p, q], lr=0.1)
    p.grad, q.grad = coo([[1]], [1.0], (2,)), torch.ones(2)  # SparseAdam refuses the second
    kept = p.grad
    with pytest.raises(RuntimeError):
        optimizer.step()
    q.grad = None
    optimizer.step()
    assert p.grad is kept
    assert p.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("keyword", [True, False])
def test_frozen_entries_are_hidden_from_gradients_of_a_closure(keyword: bool) -> None:
    p = nn.Parameter(torch.ones(2))
    mg.train_only(p, torch.tensor([True, False]))
    optimizer = torch.optim.LBFGS([p], lr=0.5, max_iter=3)

    def closure() -> float:
        assert torch.is_grad_enabled()
        p.grad = torch.stack([2 * p.detach()[0], torch.tensor(torch.nan)])
        return p[0].item()

    assert (optimizer.step(closure=closure) if keyword else optimizer.step(closure)) == 1.0
    assert 0 < p[0] < 1
    assert p[1] == 1


def test_gradients_that_list_nothing_or_the_whole_parameter() -> None:
    """COO without sparse dimensions: what is trained stands in the mask alone."""
    p = nn.Parameter(torch.ones(2))
    mg.train_only(p, torch.tensor([True, False]))
    twice = whole(torch.tensor([1.0, torch.nan]))
    for gradient, norm, expected in ((torch.zeros_like(twice), 0.0, 1.0), (twice, 1.0, -0.5)):
        mg.attach_gradient(p, gradient)
        assert mg.grad_norm(p) == norm
        mg.optim.SGD([p], lr=1.0, weight_decay=0.5).step()
        assert p.tolist() == [expected, 1.0]


def steps_in_a_fresh_process(path: Path) -> None:
    assert not hooks._global_optimizer_pre_hooks
    assert not hooks._global_optimizer_post_hooks
    module = torch.load(path, weights_only=False)
    module.weight.grad = torch.ones(1, 2)
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert module.weight.tolist() == [[0.5, 1.0]], module.weight


def test_a_fresh_process_obeys_a_mask_from_a_file_and_nothing_is_hooked_before(tmp_path: Path) -> None:
    module = nn.Linear(2, 1, bias=False)
    module.weight.data.fill_(1.0)
    mg.train_only(module.weight, torch.tensor([[True, False]]))
    torch.save(module, tmp_path / "module.pt")
    assert exit_code_of(steps_in_a_fresh_process, tmp_path / "module.pt") == 0


def test_an_optimizer_whose_step_raised_is_freed() -> None:
    weight = nn.Parameter(torch.ones(3))
    mg.train_only(weight, torch.tensor([True, False, True]))

    def fail() -> weakref.ref[Any]:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        return weakref.ref(optimizer)

    optimizer = fail()
    gc.collect()
    assert optimizer() is None
