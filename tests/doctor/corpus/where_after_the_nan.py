"""`where` discards the value of a logarithm, but its gradient is 0 times infinity.

Thread: tensorflow/tensorflow#27684
"""

import torch
from torch import nn

kind = "nan-under-mask"

model = nn.Linear(3, 1)
batch = {
    "x": torch.randn(4, 5, 3),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3], [1]]),
}
batch["x"][~batch["mask"]] = float("inf")
padding = {"x": "mask"}


def wrong(batch):
    rate = model(batch["x"]).squeeze(-1).square()
    information = torch.log(rate)  # leak
    return -torch.where(batch["mask"], information, 0.0).sum() / batch["mask"].sum()


def fixed(batch):
    x = batch["x"].masked_fill(~batch["mask"][..., None], 1)
    rate = model(x).squeeze(-1).square()
    information = torch.log(rate.masked_fill(~batch["mask"], 1))
    return -torch.where(batch["mask"], information, 0.0).sum() / batch["mask"].sum()
