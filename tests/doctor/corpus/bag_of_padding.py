"""The mean of an embedding bag counts the pad token, because padding_idx is missing.

Thread: pytorch/pytorch#47858
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

bag, head = nn.EmbeddingBag(10, 5, mode="mean"), nn.Linear(5, 3)
batch = {
    "items": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
    "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool(),
    "y": torch.tensor([2, 0, 1]),
}
padding = {"items": "mask"}


def wrong(batch):
    vectors = bag(batch["items"])  # leak
    return F.cross_entropy(head(vectors), batch["y"])


def fixed(batch):
    items = batch["items"].masked_fill(~batch["mask"], 0)
    vectors = F.embedding_bag(items, bag.weight, mode="mean", padding_idx=0)
    return F.cross_entropy(head(vectors), batch["y"])
