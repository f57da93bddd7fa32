"""Max pooling halves a sequence; the window at the border contains one real and one padded frame.

Thread: espnet/espnet#3037
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(3, 4), nn.Linear(4, 1)
batch = {
    "x": torch.randn(2, 6, 3),
    "mask": torch.arange(6) < torch.tensor([[6], [3]]),
    "y": torch.randn(2),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"]).relu().transpose(1, 2)
    halved = F.max_pool1d(hidden, 2, ceil_mode=True)  # leak
    real = batch["mask"][:, None, ::2]
    mean = halved.masked_fill(~real, 0).sum(2) / real.sum(2).clamp(min=1)
    return F.mse_loss(head(mean).squeeze(-1), batch["y"])


def fixed(batch):
    hidden = encode(batch["x"]).relu().transpose(1, 2)
    halved = F.max_pool1d(hidden.masked_fill(~batch["mask"][:, None], 0), 2, ceil_mode=True)
    real = batch["mask"][:, None, ::2]
    mean = halved.masked_fill(~real, 0).sum(2) / real.sum(2).clamp(min=1)
    return F.mse_loss(head(mean).squeeze(-1), batch["y"])
