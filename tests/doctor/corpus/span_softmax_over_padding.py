"""The softmax for the start of an answer includes padding.

Thread: huggingface/transformers#5429
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode, start = nn.Linear(4, 6), nn.Linear(6, 1, bias=False)
batch = {
    "x": torch.randn(3, 6, 4),
    "attention_mask": (torch.arange(6) < torch.tensor([[6], [4], [3]])).long(),
    "start": torch.tensor([4, 2, 0]),
}


def wrong(batch):
    logits = start(encode(batch["x"]).relu()).squeeze(-1)
    return F.cross_entropy(logits, batch["start"])  # leak


def fixed(batch):
    logits = start(encode(batch["x"]).relu()).squeeze(-1)
    logits = logits.masked_fill(batch["attention_mask"] == 0, torch.finfo(logits.dtype).min)
    return F.cross_entropy(logits, batch["start"])
