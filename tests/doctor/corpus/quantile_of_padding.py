"""Activations are clipped at a quantile that includes padding.

Thread: none found; a quantile of padded activations
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
    "y": torch.randn(3, 5),
}
padding = {"x": "mask", "y": "mask"}


def loss_of(batch, hidden, bound):
    error = head(hidden.clamp(max=bound)).squeeze(-1) - batch["y"]
    return error[batch["mask"]].square().mean()


def wrong(batch):
    hidden = encode(batch["x"])
    bound = hidden.quantile(0.8)  # leak
    return loss_of(batch, hidden, bound)


def fixed(batch):
    hidden = encode(batch["x"])
    bound = hidden[batch["mask"]].quantile(0.8)
    return loss_of(batch, hidden, bound)
