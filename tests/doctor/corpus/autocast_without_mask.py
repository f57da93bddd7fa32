"""Under autocast, the maximum over tokens includes padding.

Thread: none found; pooling under autocast and checkpointing, as without them
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

kind = "padding-leak"

encode = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
head = nn.Linear(8, 3)
batch = {
    "x": torch.randn(3, 5, 8),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.tensor([0, 2, 1]),
}
padding = {"x": "mask"}


def hidden_of(batch):
    keep = lambda x: encode(x, src_key_padding_mask=~batch["mask"])  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        return checkpoint(keep, batch["x"], use_reentrant=False)


def wrong(batch):
    pooled = hidden_of(batch).amax(1)  # leak
    return F.cross_entropy(head(pooled.float()), batch["y"])


def fixed(batch):
    hidden = hidden_of(batch).masked_fill(~batch["mask"][..., None], -torch.inf)
    pooled = hidden.amax(1).clamp(min=-1e4)
    return F.cross_entropy(head(pooled.float()), batch["y"])
