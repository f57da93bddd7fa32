"""Two convolutions over a padded text: after the first one the padding contains its bias, which the second reads.

Thread: pytorch/audio#4205
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

first, second = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 5, 3, padding=1)
batch = {
    "x": torch.randn(2, 3, 7),
    "mask": torch.arange(7) < torch.tensor([[7], [4]]),
    "labels": torch.tensor([[0, 1, 2, 3, 4, 0, 1], [2, 3, 4, 0, -100, -100, -100]]),
}
padding = {"x": batch["mask"][:, None].expand(2, 3, 7)}


def wrong(batch):
    hidden = first(batch["x"]).relu()  # leak
    return F.cross_entropy(second(hidden), batch["labels"])


def fixed(batch):
    padded = ~batch["mask"][:, None]
    hidden = first(batch["x"].masked_fill(padded, 0)).relu().masked_fill(padded, 0)
    return F.cross_entropy(second(hidden), batch["labels"])
