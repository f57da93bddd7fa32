"""Advantages are centred over the batch, including padded steps.

Thread: NovaSky-AI/SkyRL#1305
"""

import torch
from torch import nn

kind = "padding-leak"

policy = nn.Linear(3, 4)
batch = {
    "states": torch.randn(3, 5, 3),
    "actions": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 0], [3, 0, 1, 0, 0]]),
    "advantages": torch.randn(3, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"states": "mask", "actions": "mask", "advantages": "mask"}


def policy_loss(batch, advantages):
    padded = ~batch["mask"]
    logp = policy(batch["states"].masked_fill(padded[..., None], 0)).log_softmax(-1)
    taken = logp.gather(2, batch["actions"].masked_fill(padded, 0)[..., None]).squeeze(-1)
    return -(taken * advantages.masked_fill(padded, 0)).sum() / batch["mask"].sum()


def wrong(batch):
    advantages = batch["advantages"]
    centred = advantages - advantages.mean()  # leak
    return policy_loss(batch, centred)


def fixed(batch):
    advantages = batch["advantages"].masked_fill(~batch["mask"], 0)
    centred = advantages - advantages.sum() / batch["mask"].sum()
    return policy_loss(batch, centred)
