"""Void pixels are ignored by the cross entropy but counted by the Dice loss.

Thread: qubvel-org/segmentation_models.pytorch#366
"""

import torch
from torch import nn

kind = "padding-leak"

model = nn.Conv2d(2, 1, 1)
batch = {
    "picture": torch.randn(2, 2, 4, 4),
    "object": (torch.rand(2, 1, 4, 4) < 0.5).float(),
    "labelled": torch.rand(2, 1, 4, 4) < 0.7,
}
padding = {"object": "labelled"}


def wrong(batch):
    p = model(batch["picture"]).sigmoid()
    both = (p * batch["object"]).sum()  # leak
    return 1 - (2 * both + 1) / (p.sum() + batch["object"].sum() + 1)  # leak


def fixed(batch):
    p = model(batch["picture"]).sigmoid().masked_fill(~batch["labelled"], 0)
    y = batch["object"].masked_fill(~batch["labelled"], 0)
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
