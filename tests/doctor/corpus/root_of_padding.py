"""The norm of a padded vector is 0, and the derivative of its square root infinite.

Thread: pytorch/pytorch#2421
"""

import torch
from torch import nn

kind = "nan-under-mask"

model = nn.Linear(3, 4, bias=False)
batch = {
    "x": torch.randn(3, 5, 3),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = model(batch["x"].masked_fill(~batch["mask"][..., None], 0))
    length = hidden.square().sum(-1).sqrt()  # leak
    return length.masked_fill(~batch["mask"], 0).sum() / batch["mask"].sum()


def fixed(batch):
    hidden = model(batch["x"].masked_fill(~batch["mask"][..., None], 0))
    squares = hidden.square().sum(-1).masked_fill(~batch["mask"], 1)
    return squares.sqrt().masked_fill(~batch["mask"], 0).sum() / batch["mask"].sum()
