"""The mask for packed documents allows all earlier documents instead of the same one only.

Thread: none found; document mask with <= instead of ==, block-diagonal mask of a packed row
"""

import torch
from torch import nn

kind = "document-leak"

embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "tokens": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "document_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]),
    "targets": torch.tensor([[3, 4, 1, 6, 7, 8, 9, 1], [8, 9, 3, 2, 1, 11, 5, 1]]),
    "loss_weights": torch.tensor([[1.0, 1, 0.5, 1, 1, 1, 1, 0], [1, 0.5, 1, 1, 0, 1, 1, 0]]),
}


def loss_of(batch, allowed):
    q, k, v = qkv(embed(batch["tokens"])).chunk(3, -1)
    scores = (q @ k.mT / 6**0.5).masked_fill(~allowed, float("-inf"))
    hidden = scores.softmax(-1) @ v  # leak
    losses = -head(hidden).log_softmax(-1).gather(2, batch["targets"][..., None]).squeeze(2)
    return (losses * batch["loss_weights"]).sum() / batch["loss_weights"].sum()


def wrong(batch):
    document = batch["document_ids"]
    return loss_of(batch, (document[:, None] <= document[:, :, None]).tril())


def fixed(batch):
    document = batch["document_ids"]
    return loss_of(batch, (document[:, None] == document[:, :, None]).tril())
