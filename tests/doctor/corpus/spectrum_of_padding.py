"""The spectrum of a recording is that of the padded one.

Thread: none found; the spectrum of a padded recording
"""

import torch
from torch import nn

kind = "padding-leak"

model = nn.Linear(5, 2)
batch = {
    "audio": torch.randn(3, 8),
    "mask": torch.arange(8) < torch.tensor([[8], [5], [6]]),
    "y": torch.randn(3, 2),
}
padding = {"audio": "mask"}


def wrong(batch):
    power = torch.fft.rfft(batch["audio"], n=8).abs()  # leak
    return (model(power) - batch["y"]).square().mean()


def fixed(batch):
    clean = batch["audio"].masked_fill(~batch["mask"], 0)
    power = torch.fft.rfft(clean, n=8).abs()
    return (model(power) - batch["y"]).square().mean()
