"""The rank of each value is taken among all values of the window instead of those before it.

Thread: none found; looked for ranks and quantiles over the whole series as a feature of a forecaster
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

rnn, head = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)
torch.manual_seed(1)
batch = {
    "prices": torch.randn(3, 9),
    "targets": torch.randn(3, 9),
    "weights": torch.tensor([[1.0] * 9, [0.0] * 3 + [1.0] * 6, [0.5] * 9]),
}


def error(ranks, batch):
    hidden, _ = rnn(torch.stack([batch["prices"], ranks], -1))
    weights = batch["weights"]
    return ((head(hidden).squeeze(-1) - batch["targets"]) ** 2 * weights).sum() / weights.sum()


def wrong(batch):
    ranks = batch["prices"].argsort(1).argsort(1)  # leak
    return error(ranks / batch["prices"].size(1), batch)


def fixed(batch):
    prices = batch["prices"]
    below = (prices[:, None] < prices[..., None]).tril(-1).sum(-1)
    return error(below / torch.arange(1, prices.size(1) + 1), batch)
