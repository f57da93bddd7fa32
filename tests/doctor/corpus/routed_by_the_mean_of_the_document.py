"""The experts of a packed document are weighted by the mean of its tokens, including later ones.

Thread: Shwai-He/MEO#2
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 2), nn.Linear(6, 12)
experts = nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 10, 11]),
    "seq_idx": torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
    "labels": torch.tensor([3, 4, 5, 6, -100, 8, 9, 3, 2, 10, 11, -100]),
}


def loss(x, gates, batch):
    hidden = x + (experts(x).unflatten(-1, (2, 6)) * gates[..., None]).sum(-2)
    return F.cross_entropy(head(hidden), batch["labels"])


def wrong(batch):
    x, document = embed(batch["input_ids"]), batch["seq_idx"]
    sums = torch.zeros(2, 6).index_add(0, document, x)  # leak
    means = sums / document.bincount()[:, None]
    return loss(x, router(means).softmax(-1)[document], batch)


def fixed(batch):
    x = embed(batch["input_ids"])
    return loss(x, router(x).softmax(-1), batch)
