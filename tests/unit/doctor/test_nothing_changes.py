"""What a step refers to is found, and after an examination all is as it was."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.state import objects_with_state
from tests.unit.doctor.programs import batch


def test_parameters_states_and_random_numbers_are_restored() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer, b = torch.optim.Adam(model.parameters()), batch()
    model(b["x"]).sum().backward()
    optimizer.step()

    def step(b: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        b["x"].mul_(1.0)
        loss = model(b["x"]).mean(1).square().mean()
        loss.backward()
        optimizer.step()
        random.random()
        np.random.rand()  # noqa: NPY002
        return loss

    def state() -> Any:
        held = model.state_dict(), optimizer.state_dict(), b, [p.grad for p in model.parameters()]
        drawn = torch.get_rng_state(), random.getstate()[1][-1], np.random.get_state()[2]  # noqa: NPY002
        return copy.deepcopy((held, drawn))

    before, gradients = state(), [parameter.grad for parameter in model.parameters()]
    assert not mg.doctor.examine(step, b).ok
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    for parameter, known in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is known


def test_flags_hooks_and_files_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[2].eval()
    model[2].bias.requires_grad_(False)
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("module"))
    model[0].weight.register_hook(lambda gradient: calls.append("tensor") or gradient)

    def step(b: dict[str, Tensor]) -> Tensor:
        model.eval() if model.training else model.train()
        model[2].bias.requires_grad_(True)
        model[0].bias.requires_grad_(False)
        model[2].register_forward_pre_hook(lambda *_: calls.append("of the step"))
        model[2].weight.register_hook(lambda gradient: gradient)
        model[2].weight.register_post_accumulate_grad_hook(lambda _: None)
        return model(b["x"]).mean(1).square().mean()

    assert not mg.doctor.examine(step, batch()).ok
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]
    assert all(p.grad is None for p in model.parameters())
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    assert torch.is_grad_enabled()
    calls.clear()
    model(batch()["x"]).sum().backward()
    assert calls == ["module", "tensor"]
    assert not model[2].weight._backward_hooks
    assert not model[2].weight._post_accumulate_grad_hooks


def test_tensors_that_autograd_forbids_are_no_leaves() -> None:
    """Some raise when they are asked."""
    base = torch.ones(2, requires_grad=True) * 1
    first, second = base.unbind()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="Unbind"):
        _ = second.is_leaf
    assert objects_with_state([first, second]) == ([], [], [])
