"""Features are standardised with the mean of a padded batch.

Thread: espnet/espnet#6571
"""

import torch
from torch import nn

kind = "padding-leak"

model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
batch = {
    "x": torch.randn(3, 4, 3) * 5 + 2,
    "mask": torch.arange(4) < torch.tensor([[4], [1], [2]]),
    "y": torch.randn(3, 4),
}
padding = {"x": "mask", "y": "mask"}


def wrong(batch):
    centred = batch["x"] - batch["x"].mean((0, 1))  # leak
    error = (model(centred).squeeze(-1) - batch["y"]).masked_fill(~batch["mask"], 0)
    return error.square().sum() / batch["mask"].sum()


def fixed(batch):
    mask = batch["mask"]
    x = batch["x"].masked_fill(~mask[..., None], 0)
    centred = x - x.sum((0, 1)) / mask.sum()
    error = (model(centred).squeeze(-1) - batch["y"]).masked_fill(~mask, 0)
    return error.square().sum() / mask.sum()
