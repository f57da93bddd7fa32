"""A batch padded on the left is read by a recurrent network: its state starts with the padding.

Thread: clab/dynet#1121
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)
batch = {
    "ids": torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 2], [0, 0, 0, 5, 4]]),
    "mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]).bool(),
    "y": torch.tensor([0, 1, 0]),
}
padding = {"ids": "mask"}


def wrong(batch):
    outputs, _ = rnn(embed(batch["ids"]))  # leak
    return F.cross_entropy(head(outputs[:, -1]), batch["y"])


def fixed(batch):
    order = torch.sort(batch["mask"].int(), dim=1, descending=True, stable=True).indices
    ids = batch["ids"].masked_fill(~batch["mask"], 0).gather(1, order)
    outputs, _ = rnn(embed(ids))
    last = batch["mask"].sum(1).clamp(min=1) - 1
    return F.cross_entropy(head(outputs[torch.arange(len(ids)), last]), batch["y"])
