"""Each rank averages over its own tokens, then the ranks are averaged.

Thread: huggingface/transformers#34242
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "denominator"

model = nn.Linear(3, 1)
batch = {
    "x": torch.randn(4, 5, 3),
    "y": torch.randn(4, 5),
    "mask": torch.arange(5) < torch.tensor([[5], [4], [1], [2]]),
}
padding = {"x": "mask", "y": "mask"}


def rank_loss(x, y, mask):
    error = F.mse_loss(model(x.masked_fill(~mask[..., None], 0)).squeeze(-1), y, reduction="none")
    return error.masked_fill(~mask, 0).sum(), mask.sum()


def wrong(batch):
    ranks = zip(*(batch[name].chunk(2) for name in ("x", "y", "mask")), strict=True)
    losses = torch.stack([total / count for total, count in (rank_loss(*rank) for rank in ranks)])
    return losses.mean()  # leak


def fixed(batch):
    ranks = zip(*(batch[name].chunk(2) for name in ("x", "y", "mask")), strict=True)
    totals, counts = zip(*(rank_loss(*rank) for rank in ranks), strict=True)
    return sum(totals) / sum(counts)
