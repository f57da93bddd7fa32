"""Chamfer distance of point clouds: the nearest point of the other cloud may be padding.

Thread: none found; Chamfer distance of padded point clouds
"""

import torch
from torch import nn

kind = "padding-leak"

move = nn.Linear(3, 3)
batch = {
    "source": torch.randn(3, 4, 3),
    "target": torch.randn(3, 6, 3),
    "target_mask": torch.arange(6) < torch.tensor([[6], [2], [1]]),
}
batch["target"][~batch["target_mask"]] = 0.0
padding = {"target": "target_mask"}


def wrong(batch):
    distance = torch.cdist(move(batch["source"]), batch["target"])
    return distance.amin(2).mean()  # leak


def fixed(batch):
    distance = torch.cdist(move(batch["source"]), batch["target"])
    return distance.masked_fill(~batch["target_mask"][:, None], 1e30).amin(2).clamp(max=1e3).mean()
