"""Activations are divided by the batch size and multiplied by it again, so that rounding depends on the batch.

Thread: none found; looked for results that differ in the last bits with the size of the batch
"""

import torch
from torch import nn

kind = "batch-bits"
experiments = ["batch-bits"]

head = nn.Linear(4, 1)
batch = {"x": torch.randn(3, 5, 4), "y": torch.randn(3)}


def loss_of(rows, batch):
    return (torch.stack(rows).mean(1) - batch["y"]).square().sum()


def wrong(batch):
    x = batch["x"]
    scaled = x / len(x) * len(x)  # leak
    return loss_of([head(row)[:, 0] for row in scaled], batch)


def fixed(batch):
    return loss_of([head(row)[:, 0] for row in batch["x"]], batch)
