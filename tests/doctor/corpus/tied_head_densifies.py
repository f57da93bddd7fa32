"""The output layer shares the table of a sparse embedding: the sum of both gradients is dense.

Thread: OpenNMT/OpenNMT-py#1015
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "densified-gradient"

embed = nn.Embedding(12, 6, sparse=True)
out = nn.Linear(6, 12)
batch = {
    "ids": torch.tensor([[3, 4, 5], [7, 8, 9]]),
    "next": torch.tensor([[4, 5, 6], [8, 9, 1]]),
}


def wrong(batch):
    hidden = embed(batch["ids"]).tanh()
    logits = F.linear(hidden, embed.weight)  # leak
    return F.cross_entropy(logits.transpose(1, 2), batch["next"])


def fixed(batch):
    hidden = embed(batch["ids"]).tanh()
    logits = out(hidden)
    return F.cross_entropy(logits.transpose(1, 2), batch["next"])
