"""A causal mask adds a value that is not low enough if past scores are low.

Thread: karpathy/minGPT#75
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
query, key, value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 10, 11, 1]]),
}


def masked_scores(x, lowest):
    scores = query(x) @ key(x).transpose(1, 2) / 8**0.5
    mask = torch.zeros_like(scores).masked_fill(torch.ones_like(scores).triu(1) == 1, lowest)
    return scores + mask


def wrong(batch):
    x = embed(batch["input_ids"])
    weights = masked_scores(x, -10.0).softmax(-1)  # leak
    return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])


def fixed(batch):
    x = embed(batch["input_ids"])
    weights = masked_scores(x, -torch.inf).softmax(-1)
    return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])
