"""Offsets that count real tokens index a tensor of padded rows.

Thread: none found; offsets of real tokens in a padded batch
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "lengths": torch.tensor([4, 2, 5]),
    "y": torch.randn(3),
}
padding = {"x": torch.arange(5) < batch["lengths"][:, None]}


def loss_of(batch, total):
    pooled = total / batch["lengths"].clamp(min=1)[:, None]
    return (head(pooled).squeeze(-1) - batch["y"]).square().mean()


def wrong(batch):
    flat = batch["x"].flatten(0, 1)
    rows = torch.arange(len(batch["x"])).repeat_interleave(batch["lengths"])
    tokens = encode(flat[: len(rows)]).tanh()
    return loss_of(batch, torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens))  # leak


def fixed(batch):
    flat = batch["x"].flatten(0, 1)
    starts = torch.arange(len(batch["lengths"])) * batch["x"].size(1)
    rows = torch.arange(len(batch["x"])).repeat_interleave(batch["lengths"])
    within = torch.cat([torch.arange(int(n)) + s for n, s in zip(batch["lengths"], starts, strict=True)])
    tokens = encode(flat.index_select(0, within)).tanh()
    return loss_of(batch, torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens))
