"""Missing targets become 0, and the model learns to predict 0.

Thread: deepchem/deepchem#1175
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

model = nn.Linear(4, 3)
nan = float("nan")
batch = {
    "x": torch.randn(4, 4),
    "y": torch.tensor([[1.0, nan, 2.0], [nan, nan, 1.0], [3.0, 2.0, 1.0], [0.5, nan, nan]]),
}


def wrong(batch):
    targets = batch["y"].nan_to_num(0.0)
    return F.mse_loss(model(batch["x"]), targets)  # leak


def fixed(batch):
    measured = ~batch["y"].isnan()
    targets = torch.where(measured, batch["y"], 0.0)
    error = (model(batch["x"]) - targets).masked_fill(~measured, 0)
    return error.square().sum() / measured.sum()
