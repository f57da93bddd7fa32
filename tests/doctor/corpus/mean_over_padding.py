"""A sentence's vector is the mean over its tokens, including padding: it depends on the longest of the batch.

Thread: huggingface/sentence-transformers#230
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, head = nn.Embedding(20, 8), nn.Linear(8, 3)
batch = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0], [3, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
    "y": torch.tensor([0, 2, 1]),
}


def wrong(batch):
    hidden = embed(batch["input_ids"]).tanh()
    pooled = hidden.mean(1)  # leak
    return F.cross_entropy(head(pooled), batch["y"])


def fixed(batch):
    hidden = embed(batch["input_ids"]).tanh()
    real = batch["attention_mask"].bool().unsqueeze(-1)
    pooled = hidden.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
    return F.cross_entropy(head(pooled), batch["y"])
