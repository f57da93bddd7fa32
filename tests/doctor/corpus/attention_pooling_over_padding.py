"""Attention pooling: the softmax over time gives weight to padding.

Thread: LAION-AI/temporal-embedding-aggregation#14
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

score, head = nn.Linear(4, 1), nn.Linear(4, 2)
batch = {
    "hidden": torch.randn(3, 6, 4),
    "attention_mask": (torch.arange(6) < torch.tensor([[6], [2], [4]])).long(),
    "y": torch.tensor([1, 0, 1]),
}
padding = {"hidden": "attention_mask"}


def wrong(batch):
    hidden = batch["hidden"]
    weights = score(hidden).softmax(1)  # leak
    return F.cross_entropy(head((weights * hidden).sum(1)), batch["y"])


def fixed(batch):
    padded = batch["attention_mask"][..., None] == 0
    hidden = batch["hidden"].masked_fill(padded, 0)
    weights = score(hidden).masked_fill(padded, -1e30).softmax(1).masked_fill(padded, 0)
    return F.cross_entropy(head((weights * hidden).sum(1)), batch["y"])
