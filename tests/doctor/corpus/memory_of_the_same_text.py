"""The decoder is causal, but attends to an encoding of the same text, which contains the next word.

Thread: Lightning-AI/pytorch-lightning#20920
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 10, 11, 1]]),
}


def wrong(batch):
    x = embed(batch["input_ids"])
    later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
    hidden = decoder(x, memory=x, tgt_mask=later)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    x = embed(batch["input_ids"])
    later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
    hidden = decoder(x, memory=x, tgt_mask=later, memory_mask=later)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
