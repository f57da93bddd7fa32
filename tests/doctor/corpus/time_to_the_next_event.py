"""The time until the next event is an input of the network that predicts it.

Thread: ant-research/EasyTemporalPointProcess#32
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, rnn, head = nn.Embedding(8, 4), nn.GRU(5, 6, batch_first=True), nn.Linear(6, 8)
batch = {
    "events": torch.tensor([[2, 3, 4, 5, 6, 7], [5, 7, 3, 2, 0, 0], [4, 4, 5, 3, 6, 0]]),
    "times": torch.tensor([[0.0, 1, 3, 4, 6, 9], [0.0, 2, 5, 6, 0, 0], [0.0, 4, 5, 7, 8, 0]]),
    "lengths": torch.tensor([6, 4, 5]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [7, 3, 2, 1, -100, -100], [4, 5, 3, 6, 1, -100]]),
}


def loss(gaps, batch):
    hidden, _ = rnn(torch.cat([embed(batch["events"]), gaps[..., None]], -1))
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def wrong(batch):
    times = batch["times"]
    gaps = F.pad(times[:, 1:] - times[:, :-1], (0, 1))  # leak
    return loss(gaps, batch)


def fixed(batch):
    times = batch["times"]
    gaps = F.pad(times[:, 1:] - times[:, :-1], (1, 0))
    return loss(gaps, batch)
