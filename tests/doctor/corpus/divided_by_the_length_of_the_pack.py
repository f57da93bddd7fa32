"""The sum of the losses is divided by the length of the packed row, not by the number of its labels.

Thread: none found; packing, loss divided by the length of the pack instead of the tokens with a label
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-alone"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 0], [4, 8, 9, 3, 2, 10, 0, 0]]),
    "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, -100, -100], [8, 9, 3, -100, 10, -100, -100, -100]]),
}


def wrong(batch):
    logits = head(embed(batch["input_ids"]))
    total = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="sum")
    return total / batch["labels"].numel()  # leak


def fixed(batch):
    logits = head(embed(batch["input_ids"]))
    total = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="sum")
    return total / (batch["labels"] != -100).sum()
