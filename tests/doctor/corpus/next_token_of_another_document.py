"""Labels are shifted along the whole row, and the last token of a document must predict the first of the next.

Thread: pytorch/torchtitan#4075
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 0], [4, 8, 9, 3, 2, 10, 0, 0]]),
    "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]]),
    "labels": torch.tensor([[2, 3, 4, 5, 6, 7, 8, -100], [4, 8, 9, 3, 2, 10, -100, -100]]),
}


def wrong(batch):
    logits = head(embed(batch["input_ids"]).tanh())
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:])  # leak


def fixed(batch):
    logits, segment = head(embed(batch["input_ids"]).tanh()), batch["segment_ids"]
    labels = batch["labels"][:, 1:].clone()
    labels[segment[:, 1:] != segment[:, :-1]] = -100
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels)
