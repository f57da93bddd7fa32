"""Only the hardest tokens count; padded ones are the hardest of all.

Thread: none found; the largest losses of a padded batch
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 4)
batch = {
    "ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
    "tags": torch.tensor([[1, 2, 3, 0], [0, 3, 0, 0], [2, 2, 1, 0]]),
    "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
}
padding = {"ids": "mask", "tags": "mask"}


def wrong(batch):
    losses = F.cross_entropy(head(embed(batch["ids"])).mT, batch["tags"], reduction="none")
    return losses.flatten().topk(4).values.mean()  # leak


def fixed(batch):
    losses = F.cross_entropy(head(embed(batch["ids"])).mT, batch["tags"], reduction="none")
    return losses[batch["mask"]].topk(4).values.mean()
