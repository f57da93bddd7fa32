"""The loss is weighted with an accuracy, a metric that counts padding as right or wrong answers.

Thread: cs230-stanford/cs230-code-examples#13
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

model = nn.Linear(3, 4)
batch = {
    "x": torch.randn(3, 4, 3),
    "tags": torch.tensor([[0, 1, 2, 3], [1, 2, 0, 0], [3, 0, 0, 0]]),
    "mask": torch.arange(4) < torch.tensor([[4], [2], [1]]),
}
padding = {"x": "mask", "tags": "mask"}


def weighted(batch, logits, accuracy):
    tags = batch["tags"].masked_fill(~batch["mask"], -100)
    return F.cross_entropy(logits.transpose(1, 2), tags) * (1.5 - accuracy)


def wrong(batch):
    logits = model(batch["x"])
    right = (logits.argmax(-1) == batch["tags"]).float()
    accuracy = right.mean()  # leak
    return weighted(batch, logits, accuracy)


def fixed(batch):
    logits = model(batch["x"])
    right = (logits.argmax(-1) == batch["tags"]) & batch["mask"]
    accuracy = right.sum() / batch["mask"].sum()
    return weighted(batch, logits, accuracy)
