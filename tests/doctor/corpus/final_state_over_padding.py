"""The final state of a recurrent network includes the padding.

Thread: bentrevett/pytorch-sentiment-analysis#86
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

kind = "padding-leak"

rnn, head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)
batch = {
    "x": torch.randn(3, 6, 3),
    "lengths": torch.tensor([2, 6, 3]),
    "y": torch.tensor([0, 1, 0]),
}
padding = {"x": torch.arange(6) < batch["lengths"][:, None]}


def wrong(batch):
    _, (state, _) = rnn(batch["x"])  # leak
    return F.cross_entropy(head(state[-1]), batch["y"])


def fixed(batch):
    packed = pack_padded_sequence(
        batch["x"], batch["lengths"].clamp(min=1), batch_first=True, enforce_sorted=False
    )
    _, (state, _) = rnn(packed)
    return F.cross_entropy(head(state[-1]), batch["y"])
