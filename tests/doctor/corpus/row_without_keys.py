"""A row of padding only has no key to attend to: its softmax is NaN, and so is every gradient.

Thread: pytorch/pytorch#41508
"""

import torch
from torch import nn

kind = "empty-row"

encode = nn.Linear(4, 6)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [0]]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0))
    scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None], -torch.inf)
    weights = scores.softmax(-1)  # leak
    out = (weights @ hidden).masked_fill(~batch["mask"][..., None], 0)
    return out.square().sum() / batch["mask"].sum()


def fixed(batch):
    hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0))
    lowest = torch.finfo(hidden.dtype).min
    scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None], lowest)
    out = (scores.softmax(-1) @ hidden).masked_fill(~batch["mask"][..., None], 0)
    return out.square().sum() / batch["mask"].sum()
