"""Padded elements are zero, but not after the network: the sum over the set includes its bias.

Thread: harvardnlp/sent-conv-torch#34
"""

import torch
from torch import nn

kind = "padding-length"

element, whole = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6)), nn.Linear(6, 1)
batch = {
    "set": torch.randn(3, 5, 3),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
    "y": torch.randn(3),
}
padding = {"set": "mask"}


def wrong(batch):
    clean = batch["set"].masked_fill(~batch["mask"][..., None], 0)
    total = element(clean).sum(1)  # leak
    return (whole(total).squeeze(-1) - batch["y"]).square().mean()


def fixed(batch):
    clean = batch["set"].masked_fill(~batch["mask"][..., None], 0)
    total = element(clean).masked_fill(~batch["mask"][..., None], 0).sum(1)
    return (whole(total).squeeze(-1) - batch["y"]).square().mean()
