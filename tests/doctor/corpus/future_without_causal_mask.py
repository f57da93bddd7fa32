"""A language model masks padding only, so that each token attends to the ones it predicts.

Thread: huggingface/transformers#48745
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 0, 0], [4, 11, 5, 3, 9, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 1, -100, -100], [11, 5, 3, 9, 1, -100]]),
}


def wrong(batch):
    padding = batch["attention_mask"] == 0
    hidden = layer(embed(batch["input_ids"]), src_key_padding_mask=padding)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    padding = batch["attention_mask"] == 0
    later = torch.ones(padding.size(1), padding.size(1)).bool().triu(1)
    hidden = layer(embed(batch["input_ids"]), src_mask=later, src_key_padding_mask=padding)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
