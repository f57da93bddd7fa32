"""A bidirectional LSTM reads a padded batch without packing; its backward direction starts in the padding.

Thread: pytorch/pytorch#3662
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

kind = "padding-leak"

rnn, head = nn.LSTM(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 4)
batch = {
    "x": torch.randn(3, 5, 3),
    "lengths": torch.tensor([5, 2, 3]),
    "tags": torch.tensor([[1, 2, 3, 0, 2], [2, 3, -100, -100, -100], [1, 0, 3, -100, -100]]),
}
padding = {"x": torch.arange(5) < batch["lengths"][:, None]}


def wrong(batch):
    outputs, _ = rnn(batch["x"])  # leak
    return F.cross_entropy(head(outputs).transpose(1, 2), batch["tags"])


def fixed(batch):
    lengths = batch["lengths"].clamp(min=1)
    packed = pack_padded_sequence(batch["x"], lengths, batch_first=True, enforce_sorted=False)
    outputs, _ = rnn(packed)
    outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=batch["x"].size(1))
    return F.cross_entropy(head(outputs).transpose(1, 2), batch["tags"])
