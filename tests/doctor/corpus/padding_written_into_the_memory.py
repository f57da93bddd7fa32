"""Tokens, including padded ones, are written into memory slots by their content.

Thread: none found; a memory written by all positions
"""

import torch
from torch import nn

kind = "padding-leak"

address, content, head = nn.Linear(4, 3), nn.Linear(4, 6), nn.Linear(18, 1)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
    "y": torch.randn(3),
}
padding = {"x": "mask"}


def loss_of(batch, memory):
    return (head(memory.flatten(1)).squeeze(-1) - batch["y"]).square().mean()


def wrong(batch):
    share = address(batch["x"]).softmax(-1)
    memory = torch.einsum("bts,btd->bsd", share, content(batch["x"]))  # leak
    return loss_of(batch, memory)


def fixed(batch):
    share = address(batch["x"]).softmax(-1) * batch["mask"][..., None]
    memory = torch.einsum("bts,btd->bsd", share, content(batch["x"]))
    return loss_of(batch, memory)
