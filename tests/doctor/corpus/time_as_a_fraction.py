"""The time of a frame is a fraction of the batch's length instead of the recording's.

Thread: none found; relative time in a padded batch
"""

import torch
from torch import nn

kind = "padding-length"

model = nn.Linear(4, 1)
batch = {
    "x": torch.randn(3, 5, 3),
    "y": torch.randn(3, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"x": "mask", "y": "mask"}


def loss_at(batch, time):
    padded = ~batch["mask"]
    x = batch["x"].masked_fill(padded[..., None], 0)
    error = model(torch.cat([x, time[..., None]], -1)).squeeze(-1) - batch["y"]
    return error.masked_fill(padded, 0).square().sum() / batch["mask"].sum()


def wrong(batch):
    time = torch.arange(batch["x"].size(1)) / batch["x"].size(1)  # leak
    return loss_at(batch, time.expand(len(batch["x"]), -1))


def fixed(batch):
    time = torch.arange(batch["x"].size(1)) / batch["mask"].sum(1, keepdim=True).clamp(min=1)
    return loss_at(batch, time)
