"""Each sample's gradient is clipped by the norm of a loss that divides by the padded length.

Thread: meta-pytorch/opacus#792
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-length"

model = nn.Linear(3, 4)
batch = {
    "x": torch.randn(3, 5, 3),
    "labels": torch.tensor([[0, 1, 2, 3, 0], [1, 2, -100, -100, -100], [3, 0, 1, -100, -100]]),
}
padding = {"x": batch["labels"] != -100}


def clipped(losses):
    norms = torch.stack(
        [torch.autograd.grad(each, model.bias, retain_graph=True)[0].norm() for each in losses]
    )
    return (losses * (0.5 / norms.clamp(min=0.5))).sum()


def wrong(batch):
    logits = model(batch["x"].nan_to_num()).transpose(1, 2)
    tokens = F.cross_entropy(logits, batch["labels"], reduction="none")
    return clipped(tokens.mean(1))  # leak


def fixed(batch):
    real = batch["labels"] != -100
    logits = model(batch["x"].masked_fill(~real[..., None], 0)).transpose(1, 2)
    tokens = F.cross_entropy(logits, batch["labels"], reduction="none")
    return clipped(tokens.sum(1) / real.sum(1).clamp(min=1))
