from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.doctor.programs import batch


def test_parameters_states_and_random_numbers_are_restored() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(batch()["x"]).sum().backward()
    optimizer.step()

    def step(b: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        b["x"].mul_(1.0)
        loss: Tensor = model(b["x"]).mean(1).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        random.random()
        np.random.rand()  # noqa: NPY002
        return loss

    b = batch()
    before = _state(model, optimizer, b)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert not mg.doctor.examine(step, b).ok
    for name, tensor in _state(model, optimizer, b).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, msg=name)
    assert all(
        parameter.grad is known for parameter, known in zip(model.parameters(), gradients, strict=True)
    )


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
        return model(b["x"]).mean(1).square().mean()  # type: ignore[no-any-return]

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


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, b: dict[str, Tensor]) -> dict[str, Tensor]:
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kept |= {f"grad {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    for place, state in enumerate(optimizer.state.values()):
        kept |= {f"{place} {name}": value.clone() for name, value in state.items()}
    kept |= {f"batch {key}": tensor.clone() for key, tensor in b.items()}
    kept["torch"] = torch.get_rng_state()
    kept["random"] = torch.tensor(random.getstate()[1][-1])
    kept["numpy"] = torch.tensor(np.random.get_state()[2])  # type: ignore[arg-type]  # noqa: NPY002
    return kept
