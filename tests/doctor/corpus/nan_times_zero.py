"""The error of padding is multiplied by zero, which does not remove a NaN.

Thread: ecmwf/WeatherGenerator#2723
"""

import torch
from torch import nn

kind = "nan-under-mask"

model = nn.Linear(3, 1)
batch = {
    "x": torch.randn(3, 4, 3),
    "y": torch.randn(3, 4),
    "mask": torch.arange(4) < torch.tensor([[4], [2], [3]]),
}
batch["y"][~batch["mask"]] = float("nan")
padding = {"x": "mask", "y": "mask"}


def wrong(batch):
    error = (model(batch["x"]).squeeze(-1) - batch["y"]).square()
    return (error * batch["mask"]).sum() / batch["mask"].sum()  # leak


def fixed(batch):
    mask = batch["mask"]
    x = batch["x"].masked_fill(~mask[..., None], 0)
    error = (model(x).squeeze(-1) - batch["y"].masked_fill(~mask, 0)).square()
    return (error * mask).sum() / mask.sum()
