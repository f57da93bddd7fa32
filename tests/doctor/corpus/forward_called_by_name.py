"""`layer.forward(x)` instead of `layer(x)`: hooks of the layer are skipped.

Thread: pytorch/pytorch#117925
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "silent-hook"

encode, head = nn.Linear(4, 6), nn.Linear(6, 2)
model = nn.ModuleList([encode, head])
batch = {
    "x": torch.randn(4, 4),
    "y": torch.tensor([0, 1, 1, 0]),
}


def halved(_module, _inputs, output):  # leak
    return output / 2


encode.register_forward_hook(halved)


def wrong(batch):
    hidden = encode.forward(batch["x"]).tanh()
    return F.cross_entropy(head(hidden), batch["y"])


def fixed(batch):
    hidden = encode(batch["x"]).tanh()
    return F.cross_entropy(head(hidden), batch["y"])
