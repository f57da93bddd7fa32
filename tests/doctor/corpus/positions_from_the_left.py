"""A left-padded batch gets positions that start in the padding.

Thread: ndif-team/nnsight#673
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-length"

embed, place, head = nn.Embedding(12, 6), nn.Embedding(10, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [0, 0, 7, 8], [0, 0, 0, 9]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]),
    "labels": torch.tensor([[4, 5, 6, 1], [-100, -100, 8, 1], [-100, -100, -100, 1]]),
}


def wrong(batch):
    ids = batch["input_ids"]
    hidden = embed(ids) + place(torch.arange(ids.size(1)))  # leak
    return F.cross_entropy(head(hidden.tanh()).transpose(1, 2), batch["labels"])


def fixed(batch):
    positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    hidden = embed(batch["input_ids"]) + place(positions)
    return F.cross_entropy(head(hidden.tanh()).transpose(1, 2), batch["labels"])
