"""Positions do not restart at each packed document.

Thread: none found; looked for positions that run on over packed documents
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-alone"

embed, position, head = nn.Embedding(12, 6), nn.Embedding(8, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]]),
    "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100]]),
}


def wrong(batch):
    ids = batch["input_ids"]
    hidden = embed(ids) + position(torch.arange(ids.shape[1]))  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = embed(batch["input_ids"]) + position(batch["position_ids"])
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
