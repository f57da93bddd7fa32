"""True means "keep" in one interface and "drop" in the next: the encoder attends only to padding.

Thread: NVIDIA/TransformerEngine#614
"""

import torch
from torch import nn

kind = "padding-leak"

attention, head = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(4, 1)
batch = {
    "x": torch.randn(2, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[4], [2]]),
    "y": torch.randn(2, 5),
}
padding = {"x": "mask", "y": "mask"}


def wrong(batch):
    x = batch["x"]
    hidden, _ = attention(x, x, x, key_padding_mask=batch["mask"], need_weights=False)  # leak
    error = (head(hidden).squeeze(-1) - batch["y"]).masked_fill(~batch["mask"], 0)
    return error.square().sum() / batch["mask"].sum()


def fixed(batch):
    x = batch["x"].masked_fill(~batch["mask"][..., None], 0)
    hidden, _ = attention(x, x, x, key_padding_mask=~batch["mask"], need_weights=False)
    error = (head(hidden).squeeze(-1) - batch["y"]).masked_fill(~batch["mask"], 0)
    return error.square().sum() / batch["mask"].sum()
