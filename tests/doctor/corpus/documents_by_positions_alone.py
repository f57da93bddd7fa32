"""Positions restart with each packed document, but attention is only causal and includes earlier documents.

Thread: huggingface/nanoVLM#204
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, position = nn.Embedding(12, 6), nn.Embedding(8, 6)
qkv, head = nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0, 1, 2]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]]),
}


def wrong(batch):
    q, k, v = qkv(embed(batch["input_ids"]) + position(batch["position_ids"])).chunk(3, -1)
    hidden = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    q, k, v = qkv(embed(batch["input_ids"]) + position(batch["position_ids"])).chunk(3, -1)
    document = (batch["position_ids"] == 0).cumsum(1)
    allowed = (document[:, :, None] == document[:, None]).tril()
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
