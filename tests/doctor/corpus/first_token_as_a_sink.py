"""The first token of the row is a sink that every packed document attends to, but it belongs to the first one.

Thread: none found; attention sink or global first token in packed rows, other documents attend to it
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 0], [4, 8, 9, 3, 2, 10, 0, 0]]),
    "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, -100, -100], [8, 9, 3, -100, 10, -100, -100, -100]]),
}


def loss_of(batch, allowed):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def wrong(batch):
    segment = batch["segment_ids"]
    allowed = (segment[:, :, None] == segment[:, None]).tril()
    allowed[:, :, 0] = True
    return loss_of(batch, allowed)


def fixed(batch):
    segment = batch["segment_ids"]
    return loss_of(batch, (segment[:, :, None] == segment[:, None]).tril())
