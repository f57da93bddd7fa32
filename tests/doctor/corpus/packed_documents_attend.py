"""A row is filled with another document, and later text attends to it.

Thread: unslothai/unsloth#1207
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
    "document": torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]),
    "labels": torch.tensor([[-100, -100, 5, 6, 7, 1], [-100, -100, -100, 10, 11, 1]]),
}
padding = {"input_ids": "document"}  # the fillers' tokens are nobody's concern


def wrong(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    hidden = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    document = batch["document"]
    causal = torch.ones(q.size(1), q.size(1)).bool().tril()
    allowed = (document[:, :, None] == document[:, None]) & causal
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
