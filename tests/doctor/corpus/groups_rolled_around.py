"""Tokens are rolled by half a group for attention in groups, and the first ones follow the last.

Thread: JIA-Lab-research/LongLoRA#90
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [8, 9, 3, 2, 10, 11, 4, 5]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 9, 1], [9, 3, 2, 10, 11, 4, 5, 1]]),
}


def in_groups(x):
    return qkv(x).unflatten(1, (-1, 4)).chunk(3, -1)


def first_layer(batch):
    x = embed(batch["input_ids"])
    return x + F.scaled_dot_product_attention(*in_groups(x), is_causal=True).flatten(1, 2)


def wrong(batch):
    x = first_layer(batch)
    rolled = F.scaled_dot_product_attention(*in_groups(x.roll(-2, 1)), is_causal=True)  # leak
    x = x + rolled.flatten(1, 2).roll(2, 1)
    return F.cross_entropy(head(x).transpose(1, 2), batch["labels"])


def fixed(batch):
    x = first_layer(batch)
    padded = F.scaled_dot_product_attention(*in_groups(F.pad(x, (0, 0, 2, 2))), is_causal=True)
    x = x + padded.flatten(1, 2)[:, 2:-2]
    return F.cross_entropy(head(x).transpose(1, 2), batch["labels"])
