"""The return of a step sums the later rewards; for a short episode it includes padding.

Thread: natolambert/rlhf-book#216
"""

import torch
from torch import nn

kind = "padding-leak"

policy = nn.Linear(3, 4)
batch = {
    "observations": torch.randn(3, 5, 3),
    "actions": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 0], [3, 0, 1, 0, 0]]),
    "rewards": torch.randn(3, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"observations": "mask", "actions": "mask", "rewards": "mask"}


def policy_loss(batch, returns):
    padded = ~batch["mask"]
    logp = policy(batch["observations"].masked_fill(padded[..., None], 0)).log_softmax(-1)
    taken = logp.gather(2, batch["actions"].masked_fill(padded, 0)[..., None]).squeeze(-1)
    return -(taken * returns.masked_fill(padded, 0)).sum() / batch["mask"].sum()


def wrong(batch):
    returns = batch["rewards"].flip(1).cumsum(1).flip(1)  # leak
    return policy_loss(batch, returns)


def fixed(batch):
    rewards = batch["rewards"].masked_fill(~batch["mask"], 0)
    returns = rewards.flip(1).cumsum(1).flip(1)
    return policy_loss(batch, returns)
