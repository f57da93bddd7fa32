"""Each text's loss is the mean over its labels; a text without labels makes the whole batch NaN.

Thread: unslothai/unsloth-zoo#1262
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "empty-row"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0], [0, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]),
    "labels": torch.tensor([[4, 5, 6, 1], [8, 9, 1, -100], [-100, -100, -100, -100]]),
}


def token_losses(batch):
    logits = head(embed(batch["input_ids"])).transpose(1, 2)
    return F.cross_entropy(logits, batch["labels"], reduction="none"), batch["labels"] != -100


def wrong(batch):
    losses, real = token_losses(batch)
    per_text = losses.sum(1) / real.sum(1)  # leak
    return per_text.mean()


def fixed(batch):
    losses, real = token_losses(batch)
    per_text = losses.sum(1) / real.sum(1).clamp(min=1)
    return per_text.mean()
