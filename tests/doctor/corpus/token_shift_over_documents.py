"""A token shift mixes each token with the previous one, across the boundaries of packed documents.

Thread: BlinkDL/RWKV-LM#291
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
mix = nn.Parameter(torch.rand(6))
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9, 10]]),
    "cu_seqlens": torch.tensor([0, 3, 7, 9], dtype=torch.int32),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, -100, 10, -100]]),
}


def wrong(batch):
    hidden = embed(batch["input_ids"])
    before = F.pad(hidden[:, :-1], (0, 0, 1, 0))  # leak
    hidden = torch.lerp(before, hidden, mix)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = embed(batch["input_ids"])
    before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
    begins = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    begins[:, batch["cu_seqlens"][:-1].long()] = True
    hidden = torch.lerp(before.masked_fill(begins[..., None], 0), hidden, mix)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
