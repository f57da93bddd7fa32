"""`view` instead of `transpose`: only the shape is swapped, and samples are mixed.

Thread: HHTseng/video-classification#42
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "order"

rnn, head = nn.GRU(3, 4), nn.Linear(4, 2)
batch = {
    "x": torch.randn(4, 5, 3),
    "y": torch.tensor([0, 1, 1, 0]),
}


def wrong(batch):
    x = batch["x"]
    _, state = rnn(x.reshape(x.size(1), x.size(0), x.size(2)))  # leak
    return F.cross_entropy(head(state[0]), batch["y"])


def fixed(batch):
    x = batch["x"]
    _, state = rnn(x.transpose(0, 1))
    return F.cross_entropy(head(state[0]), batch["y"])
