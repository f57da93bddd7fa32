"""A mask of zeros and ones is passed to attention as floats: PyTorch adds it to the scores, and 0 excludes nothing.

Thread: timeseriesAI/tsai#171
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

project, head = nn.Linear(4, 12), nn.Linear(4, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.randn(3, 5),
}
padding = {"x": "mask", "y": "mask"}


def loss_of(batch, hidden):
    error = head(hidden).squeeze(-1) - batch["y"]
    return torch.where(batch["mask"], error, 0.0).square().sum() / batch["mask"].sum()


def wrong(batch):
    q, k, v = project(batch["x"]).chunk(3, -1)
    allowed = batch["mask"][:, None].float()
    return loss_of(batch, F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))  # leak


def fixed(batch):
    q, k, v = project(batch["x"]).chunk(3, -1)
    allowed = batch["mask"][:, None] | ~batch["mask"].any(1)[:, None, None]
    return loss_of(batch, F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))
