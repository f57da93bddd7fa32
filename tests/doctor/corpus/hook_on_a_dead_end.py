"""A hook that reverses gradients is on a tensor that the loss does not use: it is never called.

Thread: hash2430/pitchtron#3
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "silent-hook"

encode, domain = nn.Linear(4, 6), nn.Linear(6, 2)
batch = {
    "x": torch.randn(4, 4),
    "domain": torch.tensor([0, 1, 1, 0]),
}


def wrong(batch):
    hidden = encode(batch["x"]).tanh()
    reversed_ = hidden * 1
    reversed_.register_hook(lambda gradient: -gradient)  # leak
    return F.cross_entropy(domain(hidden), batch["domain"])


def fixed(batch):
    hidden = encode(batch["x"]).tanh()
    reversed_ = hidden * 1
    reversed_.register_hook(lambda gradient: -gradient)
    return F.cross_entropy(domain(reversed_), batch["domain"])
