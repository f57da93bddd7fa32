"""A state is carried from one sample to the next inside the batch: what is learnt depends on their order.

Thread: pytorch/examples, hidden state kept over unrelated samples
"""

import torch
from torch import nn

kind = "order"

cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)
batch = {
    "x": torch.randn(4, 3),
    "y": torch.randn(4),
}


def wrong(batch):
    state, losses = torch.zeros(1, 4), []
    for x, y in zip(batch["x"], batch["y"], strict=True):
        state = cell(x[None], state)  # leak
        losses.append((head(state).squeeze() - y).square())
    return torch.stack(losses).mean()


def mended(batch):
    losses = []
    for x, y in zip(batch["x"], batch["y"], strict=True):
        state = cell(x[None], torch.zeros(1, 4))
        losses.append((head(state).squeeze() - y).square())
    return torch.stack(losses).mean()
