"""A pointer network copies from the source; attention on padding raises the pad token's probability.

Thread: none found; a pointer network over a padded source
"""

import torch
from torch import nn

kind = "padding-leak"

keys, query = nn.Embedding(10, 6), nn.Linear(4, 6)
batch = {
    "state": torch.randn(3, 4),
    "source": torch.tensor([[3, 4, 5, 6], [7, 8, 1, 1], [9, 2, 3, 1]]),
    "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
    "next": torch.tensor([4, 7, 2]),
}
padding = {"source": "mask"}


def wrong(batch):
    scores = torch.einsum("btd,bd->bt", keys(batch["source"]), query(batch["state"]))
    weights = torch.softmax(scores, dim=1)  # leak
    copied = torch.zeros(len(scores), 10).scatter_add(1, batch["source"], weights)
    return -copied.gather(1, batch["next"][:, None]).add(1e-6).log().mean()


def fixed(batch):
    scores = torch.einsum("btd,bd->bt", keys(batch["source"]), query(batch["state"]))
    bias = torch.zeros_like(scores).masked_fill(~batch["mask"], -1e9)
    weights = torch.softmax(scores + bias, dim=1)
    copied = torch.zeros(len(scores), 10).scatter_add(1, batch["source"], weights * batch["mask"])
    return -copied.gather(1, batch["next"][:, None]).add(1e-6).log().mean()
