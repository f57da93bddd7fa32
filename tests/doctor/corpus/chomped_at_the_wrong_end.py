"""A dilated convolution that is padded on both sides is cut at its beginning instead of its end.

Thread: locuslab/TCN#8
"""

import torch
from torch import nn

kind = "future-leak"
is_causal = True

first, second = nn.Conv1d(3, 6, 3, padding=2), nn.Conv1d(6, 6, 3, padding=4, dilation=2)
head = nn.Linear(6, 1)
torch.manual_seed(1)
batch = {
    "series": torch.randn(2, 11, 3),
    "targets": torch.randn(2, 11),
    "weights": torch.tensor([[0.0] * 2 + [1.0] * 9, [0.0] * 4 + [1.0] * 7]),
}


def error(hidden, batch):
    predicted = head(hidden.transpose(1, 2)).squeeze(-1)
    return ((predicted - batch["targets"]) ** 2 * batch["weights"]).sum() / batch["weights"].sum()


def wrong(batch):
    x = first(batch["series"].transpose(1, 2))[..., :-2].relu()
    x = x + second(x)[..., 4:].relu()  # leak
    return error(x, batch)


def fixed(batch):
    x = first(batch["series"].transpose(1, 2))[..., :-2].relu()
    x = x + second(x)[..., :-4].relu()
    return error(x, batch)
