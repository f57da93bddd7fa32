"""The sum is masked, the denominator is the padded length.

Thread: brightmart/text_classification#40
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-length"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
    "y": torch.tensor([2, 0, 1]),
}


def wrong(batch):
    hidden = embed(batch["input_ids"]).masked_fill(batch["attention_mask"][..., None] == 0, 0)
    pooled = hidden.sum(1) / hidden.size(1)  # leak
    return F.cross_entropy(head(pooled), batch["y"])


def fixed(batch):
    hidden = embed(batch["input_ids"]).masked_fill(batch["attention_mask"][..., None] == 0, 0)
    pooled = hidden.sum(1) / batch["attention_mask"].sum(1, keepdim=True).clamp(min=1)
    return F.cross_entropy(head(pooled), batch["y"])
