"""The last output of a recurrent network is used, which for all but the longest text is padding.

Thread: keitakurita/practical-torchtext#5
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)
batch = {
    "ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
    "lengths": torch.tensor([4, 2, 1]),
    "y": torch.tensor([0, 1, 0]),
}
padding = {"ids": torch.arange(4) < batch["lengths"][:, None]}


def wrong(batch):
    outputs, _ = rnn(embed(batch["ids"]))
    last = outputs[:, -1]  # leak
    return F.cross_entropy(head(last), batch["y"])


def fixed(batch):
    outputs, _ = rnn(embed(batch["ids"]))
    rows = torch.arange(len(outputs))
    last = outputs[rows, batch["lengths"].clamp(min=1) - 1]
    return F.cross_entropy(head(last), batch["y"])
