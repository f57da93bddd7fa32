"""A mask of forbidden positions is passed to a function that expects allowed ones.

Thread: rasbt/LLMs-from-scratch#1062
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, qkv, head = nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8], [8, 9, 3, 2, 10, 11, 4]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 1], [9, 3, 2, 10, 11, 4, 1]]),
}


def heads_of(batch):
    mixed = qkv(embed(batch["input_ids"]))
    return mixed.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)


def wrong(batch):
    q, k, v = heads_of(batch)
    mask = torch.ones(q.size(2), q.size(2), dtype=torch.bool).triu()
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # leak
    logits = head(hidden.transpose(1, 2).flatten(2))
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"])


def fixed(batch):
    q, k, v = heads_of(batch)
    mask = torch.ones(q.size(2), q.size(2), dtype=torch.bool).tril()
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    logits = head(hidden.transpose(1, 2).flatten(2))
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"])
