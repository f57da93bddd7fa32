"""Targets are inputs shifted by one, but the mask is not: the last word of each text predicts padding.

Thread: chengchingwen/Transformers.jl#4
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 12)
batch = {
    "ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [11, 2, 0, 0, 0]]),
    "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]).bool(),
}
padding = {"ids": "mask"}


def wrong(batch):
    ids, mask = batch["ids"], batch["mask"]
    hidden, _ = rnn(embed(ids[:, :-1]))
    losses = F.cross_entropy(head(hidden).transpose(1, 2), ids[:, 1:], reduction="none")
    return losses[mask[:, :-1]].mean()  # leak


def fixed(batch):
    ids, mask = batch["ids"], batch["mask"]
    hidden, _ = rnn(embed(ids[:, :-1]))
    losses = F.cross_entropy(head(hidden).transpose(1, 2), ids[:, 1:], reduction="none")
    return losses[mask[:, 1:]].mean()
