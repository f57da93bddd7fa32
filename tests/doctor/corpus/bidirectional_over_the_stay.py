"""A risk is predicted for each hour of a stay by a network that reads the stay from its end as well.

Thread: mostafaalishahi/eICU_Benchmark#1
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

kind = "future-leak"
is_causal = True

both, forward = nn.GRU(4, 3, batch_first=True, bidirectional=True), nn.GRU(4, 6, batch_first=True)
head = nn.Linear(6, 2)
torch.manual_seed(1)
batch = {
    "vitals": torch.randn(3, 8, 4),
    "lengths": torch.tensor([8, 6, 5]),
    "labels": torch.tensor(
        [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, -100, -100], [1, 1, 0, 0, 0, -100, -100, -100]]
    ),
}


def wrong(batch):
    packed = pack_padded_sequence(batch["vitals"], batch["lengths"], batch_first=True)
    hidden, _ = pad_packed_sequence(both(packed)[0], batch_first=True)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    packed = pack_padded_sequence(batch["vitals"], batch["lengths"], batch_first=True)
    hidden, _ = pad_packed_sequence(forward(packed)[0], batch_first=True)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
