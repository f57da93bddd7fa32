"""Classes are weighted by frequency, and padding counts as class 0.

Thread: none found; weights of classes by their frequency in padded labels
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

model = nn.Linear(3, 4)
batch = {
    "x": torch.randn(3, 5, 3),
    "tags": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 0], [3, 2, 1, 0, 0]]),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"x": "mask", "tags": "mask"}


def loss_of(batch, counts):
    weight = counts.sum() / (1.0 + counts)
    return F.cross_entropy(model(batch["x"])[batch["mask"]], batch["tags"][batch["mask"]], weight=weight)


def wrong(batch):
    counts = F.one_hot(batch["tags"], 4).sum((0, 1))  # leak
    return loss_of(batch, counts)


def fixed(batch):
    counts = F.one_hot(batch["tags"][batch["mask"]], 4).sum(0)
    return loss_of(batch, counts)
