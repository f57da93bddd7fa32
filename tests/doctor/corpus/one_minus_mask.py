"""`1 - mask` instead of `mask`: the pooled vector is that of the padding.

Thread: earthspecies/avex#26
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": (torch.arange(5) < torch.tensor([[5], [3], [1]])).float(),
    "y": torch.tensor([0, 2, 1]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"]).tanh()
    pooled = ((1 - batch["mask"][..., None]) * hidden).sum(1)  # leak
    return F.cross_entropy(head(pooled), batch["y"])


def fixed(batch):
    mask = batch["mask"][..., None]
    hidden = encode(batch["x"].masked_fill(mask == 0, 0)).tanh()
    return F.cross_entropy(head((mask * hidden).sum(1) / mask.sum(1).clamp(min=1)), batch["y"])
