"""A softmax without `dim`, or with the wrong one, runs over the samples of the batch.

Thread: pytorch/pytorch#37399
"""

import torch
from torch import nn

kind = "sample-coupling"

model = nn.Linear(4, 3)
batch = {
    "x": torch.randn(5, 4),
    "y": torch.tensor([0, 1, 2, 0, 1]),
}


def wrong(batch):
    logits = model(batch["x"])
    probability = logits.softmax(0)  # leak
    return -probability.gather(1, batch["y"][:, None]).log().mean()


def fixed(batch):
    logits = model(batch["x"])
    probability = logits.softmax(1)
    return -probability.gather(1, batch["y"][:, None]).log().mean()
