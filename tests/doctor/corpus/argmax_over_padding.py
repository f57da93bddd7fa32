"""The argmax for the start of an answer includes padding, and its state is used in the loss.

Thread: huggingface/transformers#5429
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
batch = {
    "x": torch.randn(6, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [1], [2], [1], [3], [1]]),
    "y": torch.tensor([0, 2, 1, 1, 0, 2]),
}
padding = {"x": "mask"}


def wrong(batch):
    hidden = encode(batch["x"]).tanh()
    found = hidden.sum(-1).argmax(1)  # leak
    return F.cross_entropy(head(hidden[torch.arange(len(found)), found]), batch["y"])


def fixed(batch):
    padded = ~batch["mask"]
    hidden = encode(batch["x"].masked_fill(padded[..., None], 0)).tanh()
    found = hidden.sum(-1).masked_fill(padded, -torch.inf).argmax(1)
    return F.cross_entropy(head(hidden[torch.arange(len(found)), found]), batch["y"])
