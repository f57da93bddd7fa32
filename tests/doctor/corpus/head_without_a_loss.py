"""A second head is part of the model, but not of the loss.

Thread: pytorch/pytorch#43259
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "unused-parameter"
module = "quality"

model = nn.ModuleDict({"encode": nn.Linear(4, 6), "head": nn.Linear(6, 2), "quality": nn.Linear(6, 1)})
batch = {
    "x": torch.randn(4, 4),
    "y": torch.tensor([0, 1, 1, 0]),
    "quality": torch.tensor([0.1, 0.9, 0.5, 0.2]),
}


def wrong(batch):
    hidden = model["encode"](batch["x"]).tanh()
    model["quality"](hidden)
    return F.cross_entropy(model["head"](hidden), batch["y"])


def fixed(batch):
    hidden = model["encode"](batch["x"]).tanh()
    error = F.mse_loss(model["quality"](hidden).squeeze(-1), batch["quality"])
    return F.cross_entropy(model["head"](hidden), batch["y"]) + error
