"""A language model padded on the left predicts the first word of a text from padding.

Thread: none found; the first word after padding on the left
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed = nn.Embedding(12, 8)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
head = nn.Linear(8, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 10], [0, 0, 0, 11, 2]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]),
}


def logits_of(batch):
    mask, steps = batch["attention_mask"].bool(), batch["input_ids"].size(1)
    allowed = torch.ones(steps, steps).tril().bool() & mask[:, None] | torch.eye(steps).bool()
    hidden = layer(embed(batch["input_ids"]), src_mask=~allowed.repeat_interleave(2, 0))
    return head(hidden)[:, :-1].transpose(1, 2)


def wrong(batch):
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:]
    return F.cross_entropy(logits_of(batch), labels)  # leak


def fixed(batch):
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:]
    labels = labels.masked_fill(batch["attention_mask"][:, :-1] == 0, -100)
    return F.cross_entropy(logits_of(batch), labels)
