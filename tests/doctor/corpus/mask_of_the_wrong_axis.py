"""The mask is applied to queries instead of keys; as both have the same length, no error is raised.

Thread: ml-explore/mlx-lm#1903
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
batch = {
    "x": torch.randn(2, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3]]),
    "labels": torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, -100, -100]]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"])
    scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, :, None], -1e9)
    mixed = scores.softmax(-1) @ hidden  # leak
    return F.cross_entropy(head(mixed).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0))
    scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None, :], -1e9)
    mixed = scores.softmax(-1) @ hidden
    return F.cross_entropy(head(mixed).transpose(1, 2), batch["labels"])
