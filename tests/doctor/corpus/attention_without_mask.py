"""An encoder attends to pad tokens, because it gets no mask.

Thread: lean-dojo/ReProver#34
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed = nn.Embedding(12, 8)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
head = nn.Linear(8, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [11, 2, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
    "labels": torch.tensor([[4, 5, 6, 7, 1], [9, 10, 1, -100, -100], [2, 1, -100, -100, -100]]),
}


def wrong(batch):
    hidden = layer(embed(batch["input_ids"]))  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden = layer(embed(batch["input_ids"]), src_key_padding_mask=batch["attention_mask"] == 0)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
