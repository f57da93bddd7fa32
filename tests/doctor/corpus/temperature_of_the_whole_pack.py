"""Attention is scaled by the logarithm of the packed row's length, not the document's.

Thread: none found; looked for attention scaled by the logarithm of a pack's length
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-alone"

embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "document_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]]),
}


def wrong(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    same = batch["document_ids"][:, :, None] == batch["document_ids"][:, None]
    q = q * torch.tensor(q.shape[1]).log()  # leak
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    same = batch["document_ids"][:, :, None] == batch["document_ids"][:, None]
    q = q * same.sum(-1, keepdim=True).log()
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
