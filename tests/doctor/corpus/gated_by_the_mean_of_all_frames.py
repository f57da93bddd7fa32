"""Channels of each frame are scaled by a gate computed from the mean of all frames.

Thread: exercise-book-yq/Supercodec#4
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

embed, gate, head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 4)
torch.manual_seed(1)
batch = {
    "frames": torch.randn(2, 8, 4),
    "targets": torch.randn(2, 8, 4),
    "frame_weights": torch.tensor([[1.0] * 8, [0.0] * 2 + [1.0] * 6]),
}


def error(hidden, batch):
    weights = batch["frame_weights"][..., None]
    return ((head(hidden) - batch["targets"]).abs() * weights).sum() / weights.sum()


def wrong(batch):
    x = embed(batch["frames"]).relu()
    mean = x.mean(1, keepdim=True)  # leak
    return error(x * gate(mean).sigmoid(), batch)


def fixed(batch):
    x = embed(batch["frames"]).relu()
    mean = x.cumsum(1) / torch.arange(1, x.size(1) + 1)[:, None]
    return error(x * gate(mean).sigmoid(), batch)
