"""A convolution over images with missing pixels reads their values.

Thread: NVIDIA/partialconv#6
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

conv = nn.Conv2d(1, 1, 3, padding=1)
batch = {
    "picture": torch.randn(2, 1, 5, 5),
    "seen": torch.rand(2, 1, 5, 5) < 0.8,
}
padding = {"picture": "seen"}


def wrong(batch):
    filtered = conv(batch["picture"])  # leak
    return filtered.masked_fill(~batch["seen"], 0).square().sum() / batch["seen"].sum()


def fixed(batch):
    seen = batch["seen"].float()
    clean = batch["picture"].masked_fill(~batch["seen"], 0)
    share = F.conv2d(seen, torch.ones(1, 1, 3, 3), padding=1).clamp(min=1) / 9
    filtered = F.conv2d(clean, conv.weight, padding=1) / share + conv.bias
    return (filtered * seen).square().sum() / seen.sum()
