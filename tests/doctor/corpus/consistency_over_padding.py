"""A consistency loss between two views of a text includes padded positions.

Thread: peremartra/optipfair#34
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

one, other = nn.Linear(4, 6), nn.Linear(4, 6)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
}
padding = {"x": "mask"}


def wrong(batch):
    a, b = one(batch["x"]), other(batch["x"])
    return 1 - F.cosine_similarity(a, b, dim=-1).mean()  # leak


def fixed(batch):
    a, b = one(batch["x"]), other(batch["x"])
    likeness = F.cosine_similarity(a, b, dim=-1)
    return 1 - torch.einsum("bt,bt->", likeness, batch["mask"].float()) / batch["mask"].sum()
