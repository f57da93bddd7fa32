"""The load-balancing loss of a mixture of experts counts padded tokens.

Thread: huggingface/transformers#28505
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 3), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]),
    "labels": torch.tensor([[4, 5, 6, 1], [8, 1, -100, -100], [10, 11, 1, -100]]),
}


def wrong(batch):
    hidden = embed(batch["input_ids"])
    share = router(hidden).softmax(-1).mean((0, 1))  # leak
    loss = F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
    return loss + 0.01 * 3 * share.square().sum()


def fixed(batch):
    hidden = embed(batch["input_ids"])
    share = router(hidden[batch["attention_mask"] == 1]).softmax(-1).mean(0)
    loss = F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
    return loss + 0.01 * 3 * share.square().sum()
