"""Mixup: a long text is mixed with a short one, and its last words with padding.

Thread: none found; mixup of texts of unequal length
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(4, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2], [4]]),
    "y": torch.randn(4),
}
padding = {"x": "mask"}


def loss_of(x, real, y):
    hidden = encode(x).tanh().masked_fill(~real[..., None], 0)
    pooled = hidden.sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    return (head(pooled).squeeze(-1) - y).square().mean()


def wrong(batch):
    x, y = batch["x"], batch["y"]
    mixed = 0.7 * x + 0.3 * x.flip(0)  # leak
    return loss_of(mixed, batch["mask"], 0.7 * y + 0.3 * y.flip(0))


def fixed(batch):
    x, y = batch["x"].masked_fill(~batch["mask"][..., None], 0), batch["y"]
    mixed = 0.7 * x + 0.3 * x.flip(0)
    return loss_of(mixed, batch["mask"] | batch["mask"].flip(0), 0.7 * y + 0.3 * y.flip(0))
