"""A user's history is summed with weights by age, and padded items have weights, too.

Thread: none found; weights by age in an embedding bag
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

items, users, head = nn.Embedding(12, 4), nn.Embedding(5, 4), nn.Linear(4, 1)
batch = {
    "user": torch.tensor([0, 1, 4]),
    "history": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
    "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
    "clicked": torch.tensor([1.0, 0.0, 1.0]),
}
padding = {"history": "mask"}


def loss_of(batch, history):
    logits = head(users(batch["user"]) * history).squeeze(-1)
    return F.binary_cross_entropy_with_logits(logits, batch["clicked"])


def wrong(batch):
    weight = 0.9 ** torch.arange(batch["history"].size(1)).expand(batch["history"].shape)
    history = F.embedding_bag(batch["history"], items.weight, mode="sum", per_sample_weights=weight)  # leak
    return loss_of(batch, history)


def fixed(batch):
    weight = 0.9 ** torch.arange(batch["history"].size(1)) * batch["mask"]
    history = F.embedding_bag(batch["history"], items.weight, mode="sum", per_sample_weights=weight)
    return loss_of(batch, history)
