"""A buffer is filled in place, row by row, one token too far.

Thread: none found; rows averaged one by one into a buffer
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "lengths": torch.tensor([4, 2, 3]),
    "y": torch.randn(3),
}
padding = {"x": torch.arange(5) < batch["lengths"][:, None]}


def loss_of(batch, pooled):
    return (head(pooled).squeeze(-1) - batch["y"]).square().mean()


def wrong(batch):
    hidden, pooled = encode(batch["x"]).relu(), torch.zeros(3, 6)
    for row, length in enumerate(batch["lengths"].tolist()):
        pooled[row] = hidden[row, : length + 1].mean(0)  # leak
    return loss_of(batch, pooled)


def fixed(batch):
    hidden, pooled = encode(batch["x"]).relu(), torch.zeros(3, 6)
    for row, length in enumerate(batch["lengths"].clamp(min=1).tolist()):
        pooled[row] = hidden[row, :length].mean(0)
    return loss_of(batch, pooled)
