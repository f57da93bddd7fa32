"""Texts of equal length are computed together; the slice is one token too long.

Thread: none found; texts of one length computed together
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(4, 6, 4),
    "lengths": torch.tensor([5, 2, 2, 3]),
    "y": torch.randn(4),
}
padding = {"x": torch.arange(6) < batch["lengths"][:, None]}


def loss_of(batch, extra):
    losses = []
    for length in batch["lengths"].unique().tolist():
        rows = batch["lengths"] == length
        hidden = encode(batch["x"][rows, : max(length, 1) + extra]).tanh()
        pooled = hidden.mean(1)  # leak
        losses.append((head(pooled).squeeze(-1) - batch["y"][rows]).square())
    return torch.cat(losses).mean()


def wrong(batch):
    return loss_of(batch, 1)


def fixed(batch):
    return loss_of(batch, 0)
