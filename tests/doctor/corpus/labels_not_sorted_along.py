"""Texts are sorted by length for packing, their labels are not.

Thread: pytorch/pytorch#2615
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

kind = "order"

rnn, head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)
batch = {
    "x": torch.randn(4, 6, 3),
    "lengths": torch.tensor([2, 6, 3, 5]),
    "y": torch.tensor([0, 1, 2, 1]),
}


def encode(x, lengths, order):
    packed = pack_padded_sequence(x[order], lengths[order].clamp(min=1), batch_first=True)
    return rnn(packed)[1][0]


def wrong(batch):
    order = batch["lengths"].argsort(descending=True, stable=True)
    state = encode(batch["x"], batch["lengths"], order)
    return F.cross_entropy(head(state), batch["y"])  # leak


def fixed(batch):
    order = batch["lengths"].argsort(descending=True, stable=True)
    state = encode(batch["x"], batch["lengths"], order)
    return F.cross_entropy(head(state), batch["y"][order])
