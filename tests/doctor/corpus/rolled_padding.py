"""`roll` mixes each token with the previous one: the first token gets the last column, which is padding.

Thread: lucidrains/x-transformers#208
"""

import torch
from torch import nn

kind = "padding-leak"

mix, head = nn.Linear(8, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "y": torch.randn(3, 5),
}
padding = {"x": "mask", "y": "mask"}


def loss_of(batch, hidden):
    error = head(hidden).squeeze(-1) - batch["y"]
    return error[batch["mask"]].square().mean()


def wrong(batch):
    x = batch["x"]
    hidden = mix(torch.cat([x, x.roll(1, 1)], -1)).relu()  # leak
    return loss_of(batch, hidden)


def fixed(batch):
    x = batch["x"]
    hidden = mix(torch.cat([x, nn.functional.pad(x, (0, 0, 1, -1))], -1)).relu()
    return loss_of(batch, hidden)
