"""A short causal convolution over a packed row reads the last tokens of the previous document.

Thread: huggingface/transformers#46588
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
conv = nn.Conv1d(6, 6, 3, padding=2, groups=6)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]]),
}


def wrong(batch):
    hidden = embed(batch["input_ids"]).transpose(1, 2)
    mixed = F.silu(conv(hidden)[..., : hidden.shape[-1]])  # leak
    return F.cross_entropy(head(mixed.transpose(1, 2)).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden, seq_idx = embed(batch["input_ids"]).transpose(1, 2), batch["seq_idx"]
    mixed = conv.bias[:, None].expand_as(hidden)
    for back in range(3):
        same = F.pad(seq_idx[:, : 8 - back], (back, 0), value=-1) == seq_idx
        moved = F.pad(hidden[..., : 8 - back], (back, 0))
        mixed = mixed + conv.weight[:, :, 2 - back] * moved.masked_fill(~same[:, None], 0)
    return F.cross_entropy(head(F.silu(mixed).transpose(1, 2)).transpose(1, 2), batch["labels"])
