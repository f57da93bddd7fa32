"""Squeeze and excitation: channels are weighted by their mean over time, including padding.

Thread: NVIDIA-NeMo/Speech#3216
"""

import torch
from torch import nn

kind = "padding-leak"

conv, gate, head = nn.Conv1d(4, 6, 1), nn.Linear(6, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 4, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.randn(3, 5),
}
padding = {"x": batch["mask"][:, None], "y": "mask"}


def loss_of(batch, hidden, squeezed):
    excited = hidden * gate(squeezed).sigmoid()[..., None]
    error = head(excited.transpose(1, 2)).squeeze(-1) - batch["y"]
    return error.masked_fill(~batch["mask"], 0).square().sum() / batch["mask"].sum()


def wrong(batch):
    hidden = conv(batch["x"])
    squeezed = nn.functional.adaptive_avg_pool1d(hidden, 1).squeeze(-1)  # leak
    return loss_of(batch, hidden, squeezed)


def fixed(batch):
    hidden, real = conv(batch["x"]), batch["mask"][:, None]
    squeezed = (hidden * real).sum(2) / real.sum(2).clamp(min=1)
    return loss_of(batch, hidden, squeezed)
