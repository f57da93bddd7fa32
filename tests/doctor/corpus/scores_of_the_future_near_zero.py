"""A forecaster fills the scores of the future with 1e-9 instead of -1e9, and hardly masks it.

Thread: awslabs/gluonts#1401
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

embed, query, key, head = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
torch.manual_seed(1)
batch = {
    "series": torch.randn(2, 8, 3),
    "target": torch.randn(2, 8),
    "target_weight": torch.tensor([[0.0, 1, 1, 1, 1, 1, 1, 1], [0.0, 0, 0, 1, 1, 1, 1, 2]]),
}


def error(predicted, batch):
    weight = batch["target_weight"]
    return ((predicted.squeeze(-1) - batch["target"]) ** 2 * weight).sum() / weight.sum()


def wrong(batch):
    x = embed(batch["series"])
    later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
    weights = (query(x) @ key(x).mT).masked_fill(later, 1e-9).softmax(-1)
    return error(head(weights @ x), batch)  # leak


def fixed(batch):
    x = embed(batch["series"])
    later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
    weights = (query(x) @ key(x).mT).masked_fill(later, -1e9).softmax(-1)
    return error(head(weights @ x), batch)
