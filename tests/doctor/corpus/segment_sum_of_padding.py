"""Tokens, including padded ones, are summed by row index.

Thread: none found; padded tokens in a sum by rows
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[4], [2], [5]]),
    "y": torch.randn(3),
}
padding = {"x": "mask"}


def wrong(batch):
    tokens = encode(batch["x"]).relu().flatten(0, 1)
    rows = torch.arange(len(batch["x"])).repeat_interleave(batch["x"].size(1))
    total = torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens)  # leak
    return (head(total).squeeze(-1) - batch["y"]).square().mean()


def fixed(batch):
    rows, steps = batch["mask"].nonzero(as_tuple=True)
    tokens = encode(batch["x"][rows, steps]).relu()
    total = torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens)
    return (head(total).squeeze(-1) - batch["y"]).square().mean()
