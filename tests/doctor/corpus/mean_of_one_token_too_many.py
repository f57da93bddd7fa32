"""The bounds of packed documents are treated as inclusive, and each mean includes the first token of the next.

Thread: none found; mean pooling of packed documents, cu_seqlens off by one, inclusive end
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
batch = {
    "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10]),
    "cu_seqlens": torch.tensor([0, 3, 7, 9], dtype=torch.int32),
    "labels": torch.tensor([1, 0, 2]),
}


def wrong(batch):
    hidden, bounds = embed(batch["input_ids"]).tanh(), batch["cu_seqlens"].tolist()
    means = [hidden[first : last + 1].mean(0) for first, last in pairwise(bounds)]  # leak
    return F.cross_entropy(head(torch.stack(means)), batch["labels"])


def fixed(batch):
    hidden, bounds = embed(batch["input_ids"]).tanh(), batch["cu_seqlens"].tolist()
    means = [hidden[first:last].mean(0) for first, last in pairwise(bounds)]
    return F.cross_entropy(head(torch.stack(means)), batch["labels"])
