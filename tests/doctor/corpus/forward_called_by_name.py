"""`layer.forward(x)` instead of `layer(x)`: hooks of the layer are passed over.

Thread: pytorch/pytorch, hooks are not called by .forward()
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "silent-hook"

encode, head = nn.Linear(4, 6), nn.Linear(6, 2)
batch = {
    "x": torch.randn(4, 4),
    "y": torch.tensor([0, 1, 1, 0]),
}


def halved(_module, _inputs, output):
    return output / 2


def wrong(batch):
    handle = encode.register_forward_hook(halved)  # leak
    hidden = encode.forward(batch["x"]).tanh()
    handle.remove()
    return F.cross_entropy(head(hidden), batch["y"])


def mended(batch):
    handle = encode.register_forward_hook(halved)
    hidden = encode(batch["x"]).tanh()
    handle.remove()
    return F.cross_entropy(head(hidden), batch["y"])
