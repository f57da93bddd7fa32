"""Hand-written relative attention: padded keys get a bias of 0 instead of minus infinity.

Thread: none found; a relative bias that is multiplied by the mask
"""

import torch
from torch import nn

kind = "padding-leak"

project, head = nn.Linear(4, 12), nn.Linear(4, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
    "y": torch.randn(3, 5),
}
padding = {"x": "mask", "y": "mask"}


def loss_of(batch, weights, value):
    error = head(weights @ value).squeeze(-1) - batch["y"]
    return (error * batch["mask"]).square().sum() / batch["mask"].sum()


def wrong(batch):
    query, key, value = project(batch["x"]).split(4, -1)
    steps = key.size(1)
    bias = -torch.arange(steps).sub(torch.arange(steps)[:, None]).abs() * batch["mask"][:, None]
    weights = torch.baddbmm(bias.float(), query, key.mT).softmax(-1)  # leak
    return loss_of(batch, weights, value)


def fixed(batch):
    query, key, value = project(batch["x"]).split(4, -1)
    steps = key.size(1)
    bias = -torch.arange(steps).sub(torch.arange(steps)[:, None]).abs().float()
    bias = bias.masked_fill(~batch["mask"][:, None], torch.finfo(bias.dtype).min)
    weights = torch.baddbmm(bias, query, key.mT).softmax(-1)
    return loss_of(batch, weights, value)
