"""Texts are cut to a common length, and the maximum includes the padding of short ones.

Thread: none found; texts cut to a common length
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Conv1d(4, 6, 1), nn.Linear(6, 1)
batch = (
    torch.randn(3, 6, 4),
    torch.tensor([6, 2, 3]),
    torch.randn(3),
)
padding = {0: torch.arange(6) < batch[1][:, None]}


def wrong(batch):
    x, lengths, y = batch
    x = x[:, : int(lengths.float().mean())]
    hidden = encode(x.transpose(1, 2)).relu()
    pooled = nn.functional.max_pool1d(hidden, hidden.size(2)).squeeze(2)  # leak
    return (head(pooled).squeeze(-1) - y).abs().mean()


def fixed(batch):
    x, lengths, y = batch
    x = x[:, : max(1, int(lengths.min()))]
    hidden = encode(x.transpose(1, 2)).relu()
    pooled = nn.functional.max_pool1d(hidden, hidden.size(2)).squeeze(2)
    return (head(pooled).squeeze(-1) - y).abs().mean()
