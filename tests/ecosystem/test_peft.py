"""peft: adapters beside linear layers that see masked inputs."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ecosystem.rows import works
from tests.ecosystem.truth import garbage


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh())


CONFIGS = {
    "LoRA": peft.LoraConfig(target_modules=["first", "second"], r=2, init_lora_weights=False),
    "DoRA": peft.LoraConfig(target_modules=["first", "second"], r=2, use_dora=True, init_lora_weights=False),
    "IA3": peft.IA3Config(target_modules=["first", "second"], feedforward_modules=[]),
    "LoHa": peft.LoHaConfig(target_modules=["first"], r=2, init_weights=False),
    "VeRA": peft.VeraConfig(target_modules=["first"], r=2),
    "BOFT": peft.BOFTConfig(target_modules=["second"], boft_block_size=2),
}


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@works("peft", "LoRA, DoRA, IA³, LoHa, VeRA: padded rows are ignored, forward and backward")
@pytest.mark.parametrize("name", ["LoRA", "DoRA", "IA3", "LoHa", "VeRA"])
def test_padded_rows(name: str) -> None:
    model = peft.get_peft_model(Model(), CONFIGS[name])
    _, values, _ = garbage(6, 3, density=1.1)
    rows = torch.tensor([True, False, True, True, False, True])
    x = mg.masked(torch.where(rows[:, None], values, torch.nan), rows[:, None])
    out = model(x)
    truth = model(values[rows])
    assert torch.equal(out.mask, rows[:, None].expand(6, 2))
    torch.testing.assert_close(out.compressed().view(-1, 2), truth)
    found, expected = (
        gradients(model, model(x).square().mean()),
        gradients(model, model(values[rows]).square().mean()),
    )
    assert expected
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient)
