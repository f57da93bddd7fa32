"""Pad tokens are targets: the loss teaches the tagger to predict padding.

Thread: huggingface/transformers#32832
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, head = nn.Embedding(10, 6), nn.Linear(6, 4)
batch = {
    "words": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "tags": torch.tensor([[1, 2, 3, 1], [2, 3, 0, 0]]),
    "mask": torch.tensor([[True, True, True, True], [True, True, False, False]]),
}
padding = {"words": "mask", "tags": "mask"}


def wrong(batch):
    logits = head(embed(batch["words"]))
    return F.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten())  # leak


def fixed(batch):
    logits = head(embed(batch["words"]))
    tags = batch["tags"].masked_fill(~batch["mask"], -100)
    return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)
