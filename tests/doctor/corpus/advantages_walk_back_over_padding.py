"""Generalised advantages are summed from the end of the tensor, which for a short episode is padding.

Thread: radixark/miles#1827
"""

import torch
from torch import nn

kind = "padding-leak"

critic, policy = nn.Linear(3, 1), nn.Linear(3, 2)
batch = {
    "states": torch.randn(3, 5, 3),
    "actions": torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]),
    "rewards": torch.randn(3, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"states": "mask", "actions": "mask", "rewards": "mask"}


def loss_of(batch, advantages):
    logp = policy(batch["states"]).log_softmax(-1).gather(2, batch["actions"][..., None]).squeeze(-1)
    return -(logp * advantages)[batch["mask"]].mean()


def wrong(batch):
    values = critic(batch["states"]).squeeze(-1)
    running, advantages = torch.zeros(len(values)), []
    for t in reversed(range(values.size(1))):
        running = batch["rewards"][:, t] - values[:, t] + 0.9 * running  # leak
        advantages.insert(0, running)
    return loss_of(batch, torch.stack(advantages, 1))


def fixed(batch):
    values = critic(batch["states"]).squeeze(-1)
    running, advantages = torch.zeros(len(values)), []
    for t in reversed(range(values.size(1))):
        running = batch["rewards"][:, t] - values[:, t] + 0.9 * running
        running = torch.where(batch["mask"][:, t], running, 0.0)
        advantages.insert(0, running)
    return loss_of(batch, torch.stack(advantages, 1))
