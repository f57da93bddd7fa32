"""The input is masked, the hidden layer is not: the second convolution reads the bias of the first in the padding.

Thread: mozilla/TTS#429
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-length"

first, second = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 5, 3, padding=1)
batch = {
    "x": torch.randn(2, 7, 3),
    "mask": torch.arange(7) < torch.tensor([[7], [4]]),
    "labels": torch.tensor([[0, 1, 2, 3, 4, 0, 1], [2, 3, 4, 0, -100, -100, -100]]),
}
padding = {"x": "mask"}


def wrong(batch):
    x = batch["x"].masked_fill(~batch["mask"][..., None], 0).transpose(1, 2)
    hidden = first(x).relu()
    logits = second(hidden)  # leak
    return F.cross_entropy(logits, batch["labels"])


def fixed(batch):
    padded = ~batch["mask"][:, None]
    x = batch["x"].transpose(1, 2).masked_fill(padded, 0)
    hidden = first(x).relu().masked_fill(padded, 0)
    return F.cross_entropy(second(hidden), batch["labels"])
