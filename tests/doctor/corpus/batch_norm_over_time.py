"""Batch normalisation of features includes later steps in its mean.

Thread: Andong-Li-speech/GaGNet#2
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

rnn, norm, head = nn.GRU(3, 6, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 1)
step_norm = nn.LayerNorm(6)
torch.manual_seed(1)
batch = {
    "frames": torch.randn(3, 7, 3),
    "targets": torch.randn(3, 7),
    "sample_weight": torch.tensor([[1.0] * 7, [0.5] * 7, [1.0, 1, 2, 2, 2, 1, 1]]),
}


def error(hidden, batch):
    weight = batch["sample_weight"]
    return ((head(hidden).squeeze(-1) - batch["targets"]) ** 2 * weight).sum() / weight.sum()


def wrong(batch):
    hidden, _ = rnn(batch["frames"])
    hidden = norm(hidden.transpose(1, 2)).transpose(1, 2)  # leak
    return error(hidden, batch)


def fixed(batch):
    hidden, _ = rnn(batch["frames"])
    return error(step_norm(hidden), batch)
