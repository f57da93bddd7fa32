"""peft: adapters beside linear layers that see masked inputs."""

from __future__ import annotations

import peft
import pytest
import torch
from torch import nn

import maskgrad as mg

CONFIGS = {
    "LoRA": peft.LoraConfig(target_modules=["0", "2"], r=2, init_lora_weights=False),
    "DoRA": peft.LoraConfig(target_modules=["0", "2"], r=2, use_dora=True, init_lora_weights=False),
    "IA3": peft.IA3Config(target_modules=["0", "2"], feedforward_modules=[]),
    "LoHa": peft.LoHaConfig(target_modules=["0"], r=2, init_weights=False),
    "VeRA": peft.VeraConfig(target_modules=["0"], r=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_padded_rows(name: str) -> None:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = peft.get_peft_model(layers, CONFIGS[name])
    trained = [p for p in model.parameters() if p.requires_grad]
    values, rows = torch.randn(6, 3), torch.tensor([True, False, True, True, False, True])
    out = model(mg.masked(torch.where(rows[:, None], values, torch.nan), rows[:, None]))
    truth = model(values[rows])
    assert torch.equal(out.mask, rows[:, None].expand(6, 2))
    torch.testing.assert_close(out.compressed().view(-1, 2), truth)
    found = torch.autograd.grad(out.square().mean(), trained)
    torch.testing.assert_close(found, torch.autograd.grad(truth.square().mean(), trained))
