"""The entropy of a codebook's average use includes padded frames.

Thread: lucidrains/vector-quantize-pytorch#62
"""

import torch
from torch import nn

kind = "padding-leak"

encode = nn.Linear(4, 3)
codebook = nn.Parameter(torch.randn(5, 3))
batch = {
    "frames": torch.randn(3, 6, 4),
    "mask": torch.arange(6) < torch.tensor([[6], [3], [4]]),
}
padding = {"frames": "mask"}


def use_of(batch):
    hidden = encode(batch["frames"])
    distance = (hidden[..., None, :] - codebook).square().sum(-1)
    return (-distance).softmax(-1)


def wrong(batch):
    average = use_of(batch).mean((0, 1))  # leak
    return (average * average.log()).sum()


def fixed(batch):
    average = use_of(batch)[batch["mask"]].mean(0)
    return (average * average.log()).sum()
