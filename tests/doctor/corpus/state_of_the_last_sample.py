"""A state is carried from one sample to the next inside the batch: training depends on their order.

Thread: RUCAIBox/RecBole#697
"""

import torch
from torch import nn

kind = "order"

cell, head, start = nn.GRUCell(3, 4), nn.Linear(4, 1), nn.Parameter(torch.randn(1, 4))
batch = {
    "x": torch.randn(4, 3),
    "y": torch.randn(4),
}


def wrong(batch):
    state, losses = start, []
    for x, y in zip(batch["x"], batch["y"], strict=True):
        state = cell(x[None], state)  # leak
        losses.append((head(state).squeeze() - y).square())
    return torch.stack(losses).mean()


def fixed(batch):
    losses = []
    for x, y in zip(batch["x"], batch["y"], strict=True):
        state = cell(x[None], start)
        losses.append((head(state).squeeze() - y).square())
    return torch.stack(losses).mean()
