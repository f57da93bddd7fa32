"""Batch statistics of tokens include the padded ones.

Thread: pytorch/pytorch#70529
"""

import torch
from torch import nn

kind = "padding-leak"

linear, norm, head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
batch = {
    "x": torch.randn(4, 5, 3),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3], [4]]),
    "y": torch.randn(4, 5),
}
padding = {"x": "mask", "y": "mask"}


def wrong(batch):
    hidden = linear(batch["x"]).transpose(1, 2)
    normed = norm(hidden).transpose(1, 2)  # leak
    error = head(normed).squeeze(-1) - batch["y"]
    return error[batch["mask"]].square().mean()


def fixed(batch):
    hidden = linear(batch["x"][batch["mask"]])
    error = head(norm(hidden)).squeeze(-1) - batch["y"][batch["mask"]]
    return error.square().mean()
