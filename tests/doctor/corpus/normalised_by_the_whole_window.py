"""A window is scaled by its own mean and deviation, including the steps to forecast.

Thread: shiyu-coder/Kronos#228
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

rnn, head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 3)
torch.manual_seed(1)
batch = {
    "window": torch.randn(2, 9, 3) * 4 + 7,
    "targets": torch.randn(2, 9, 3),
    "loss_weights": torch.tensor([[0.0, 0, 1, 1, 1, 1, 1, 1, 1], [0.0, 0, 1, 1, 1, 1, 1, 0, 0]]),
}


def error(x, batch):
    weights = batch["loss_weights"][..., None]
    return ((head(rnn(x)[0]) - batch["targets"]).abs() * weights).sum() / weights.sum()


def wrong(batch):
    window = batch["window"]
    mean = window.mean(1, keepdim=True)  # leak
    std = window.std(1, keepdim=True)  # leak
    return error((window - mean) / (std + 1e-5), batch)


def fixed(batch):
    window = batch["window"]
    count = torch.arange(1, window.size(1) + 1)[:, None]
    mean = window.cumsum(1) / count
    variance = (window**2).cumsum(1) / count - mean**2
    return error((window - mean) / (variance.clamp(min=0) + 1e-5).sqrt(), batch)
