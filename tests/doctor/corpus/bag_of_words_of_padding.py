"""The set of a text's words, including the pad token, is the target of another head.

Thread: none found; a set of words as a target, and the pad token in it
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, words = nn.Linear(4, 6), nn.Linear(6, 12)
batch = {
    "x": torch.randn(3, 4),
    "ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
    "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
}
padding = {"ids": "mask"}


def wrong(batch):
    logits = words(encode(batch["x"]).relu())
    present = torch.zeros_like(logits).scatter(1, batch["ids"], 1.0)  # leak
    return F.binary_cross_entropy_with_logits(logits, present)


def fixed(batch):
    logits = words(encode(batch["x"]).relu())
    present = torch.zeros_like(logits)
    rows, steps = batch["mask"].nonzero(as_tuple=True)
    present[rows, batch["ids"][rows, steps]] = 1.0
    return F.binary_cross_entropy_with_logits(logits, present)
