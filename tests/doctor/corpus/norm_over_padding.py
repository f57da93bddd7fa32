"""Activations are scaled by their global norm, which includes the padding.

Thread: OliverRichter/normalized-attention#1
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
    "labels": torch.tensor([[0, 1, 2, 0, 1], [1, 2, -100, -100, -100], [2, 0, 0, -100, -100]]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"]).tanh()
    scale = torch.linalg.vector_norm(hidden).clamp(min=1)  # leak
    return F.cross_entropy(head(hidden / scale).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0)).tanh()
    scale = torch.linalg.vector_norm(hidden.masked_fill(~batch["mask"][..., None], 0)).clamp(min=1)
    return F.cross_entropy(head(hidden / scale).transpose(1, 2), batch["labels"])
