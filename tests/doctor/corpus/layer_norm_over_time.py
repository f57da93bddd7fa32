"""A layer norm over time and features: one mean for all tokens of a text, including padding.

Thread: pytorch/pytorch#81985
"""

import torch
from torch import nn

kind = "padding-leak"

encode, norm, token_norm = nn.Linear(4, 6), nn.GroupNorm(1, 6), nn.LayerNorm(6)
head = nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.randn(3, 5),
}
padding = {"x": "mask", "y": "mask"}


def loss_of(batch, hidden):
    error = head(hidden).squeeze(-1) - batch["y"]
    return error[batch["mask"]].square().mean()


def wrong(batch):
    hidden = encode(batch["x"]).transpose(1, 2)
    hidden = norm(hidden)  # leak
    return loss_of(batch, hidden.transpose(1, 2))


def fixed(batch):
    return loss_of(batch, token_norm(encode(batch["x"])))
