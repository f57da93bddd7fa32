"""A sequence is cut into windows, and one counts if its first entry is real.

Thread: none found; windows that begin before the padding
"""

import torch
from torch import nn

kind = "padding-leak"

model = nn.Linear(3, 1)
batch = {
    "x": torch.randn(3, 8),
    "mask": torch.arange(8) < torch.tensor([[8], [5], [6]]),
}
padding = {"x": "mask"}


def wrong(batch):
    windows, real = batch["x"].unfold(1, 3, 1), batch["mask"].unfold(1, 3, 1)
    errors = model(windows).squeeze(-1).square()  # leak
    return errors[real[..., 0]].mean()


def fixed(batch):
    windows, real = batch["x"].unfold(1, 3, 1), batch["mask"].unfold(1, 3, 1)
    errors = model(windows).squeeze(-1).square()
    return errors[real.all(-1)].mean()
