"""A convolution in a language model is centred, so that each token sees the one it predicts.

Thread: none found; looked for a centred convolution in a causal model, and for padding "same" in a language model
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, conv, head = nn.Embedding(12, 6), nn.Conv1d(6, 6, 3), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 10, 11, 1]]),
}


def wrong(batch):
    x = F.pad(embed(batch["input_ids"]).transpose(1, 2), (1, 1))
    hidden = conv(x)  # leak
    return F.cross_entropy(head(hidden.transpose(1, 2)).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = conv(F.pad(embed(batch["input_ids"]).transpose(1, 2), (2, 0)))
    return F.cross_entropy(head(hidden.transpose(1, 2)).transpose(1, 2), batch["labels"])
