"""Two micro-batches, each the mean of its own tokens, halved: tokens of the shorter one weigh more.

Thread: huggingface/transformers#24725
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "denominator"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0], [9, 10, 0, 0], [11, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]),
    "labels": torch.tensor([[4, 5, 6, 1], [8, 9, 1, -100], [10, 1, -100, -100], [1, -100, -100, -100]]),
}


def wrong(batch):
    total = torch.tensor(0.0)
    for ids, labels in zip(batch["input_ids"].chunk(2), batch["labels"].chunk(2), strict=True):
        logits = head(embed(ids)).transpose(1, 2)
        total = total + F.cross_entropy(logits, labels) / 2  # leak
    return total


def fixed(batch):
    total = torch.tensor(0.0)
    tokens = (batch["labels"] != -100).sum()
    for ids, labels in zip(batch["input_ids"].chunk(2), batch["labels"].chunk(2), strict=True):
        logits = head(embed(ids)).transpose(1, 2)
        total = total + F.cross_entropy(logits, labels, reduction="sum") / tokens
    return total
