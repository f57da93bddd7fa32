"""Temporal differences: the last step of an episode is bootstrapped from the value of the padding after it.

Thread: alibaba/ROLL#447
"""

import torch
from torch import nn

kind = "padding-leak"

critic = nn.Linear(3, 1)
batch = {
    "states": torch.randn(3, 5, 3),
    "rewards": torch.randn(3, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"states": "mask", "rewards": "mask"}


def wrong(batch):
    values = critic(batch["states"]).squeeze(-1)
    after = torch.cat([values[:, 1:], torch.zeros(len(values), 1)], 1)
    error = batch["rewards"] + 0.9 * after - values  # leak
    return error.masked_fill(~batch["mask"], 0).square().sum() / batch["mask"].sum()


def fixed(batch):
    padded = ~batch["mask"]
    values = critic(batch["states"].masked_fill(padded[..., None], 0)).squeeze(-1).masked_fill(padded, 0)
    after = torch.cat([values[:, 1:], torch.zeros(len(values), 1)], 1)
    error = batch["rewards"] + 0.9 * after - values
    return error.masked_fill(padded, 0).square().sum() / batch["mask"].sum()
