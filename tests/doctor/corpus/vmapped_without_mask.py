"""A function of one sample is mapped over the batch without the sample's length.

Thread: none found; a function of one sample under vmap
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.randn(3),
}
padding = {"x": "mask"}


def wrong(batch):
    def of_one(x, y):
        pooled = encode(x).tanh().logsumexp(0)  # leak
        return (head(pooled).squeeze(-1) - y).square()

    return torch.func.vmap(of_one)(batch["x"], batch["y"]).mean()


def fixed(batch):
    def of_one(x, real, y):
        hidden = torch.where(real[:, None], encode(x).tanh(), -1e9)
        return (head(hidden.logsumexp(0).clamp(min=-1e3)).squeeze(-1) - y).square()

    return torch.func.vmap(of_one)(batch["x"], batch["mask"], batch["y"]).mean()
