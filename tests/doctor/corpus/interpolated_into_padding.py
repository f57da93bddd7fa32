"""A recording is resampled by interpolation; its last frames are mixed with padding.

Thread: none found; linear interpolation of padded recordings
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

model = nn.Linear(4, 1)
batch = {
    "x": torch.randn(3, 4, 4),
    "lengths": torch.tensor([4, 2, 3]),
}
padding = {"x": torch.arange(4) < batch["lengths"][:, None]}


def loss_of(batch, stretched):
    out = model(stretched.transpose(1, 2)).squeeze(-1).square()
    real = torch.arange(out.size(1)) < 2 * batch["lengths"][:, None]
    return out[real].mean()


def wrong(batch):
    x = batch["x"].transpose(1, 2)
    return loss_of(batch, F.interpolate(x, scale_factor=2, mode="linear"))  # leak


def fixed(batch):
    x = batch["x"].transpose(1, 2)
    return loss_of(batch, F.interpolate(x, scale_factor=2, mode="nearest"))
