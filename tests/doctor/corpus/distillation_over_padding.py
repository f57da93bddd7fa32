"""The divergence from a teacher is averaged over all positions of the batch.

Thread: peremartra/optipfair#34
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, student = nn.Embedding(12, 6), nn.Linear(6, 5)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "teacher": torch.randn(2, 4, 5),
}
padding = {"input_ids": "attention_mask", "teacher": "attention_mask"}


def wrong(batch):
    logp = student(embed(batch["input_ids"])).log_softmax(-1)
    target = batch["teacher"].softmax(-1)
    return F.kl_div(logp, target, reduction="batchmean")  # leak


def fixed(batch):
    padded = batch["attention_mask"][..., None] == 0
    logp = student(embed(batch["input_ids"])).log_softmax(-1)
    target = batch["teacher"].masked_fill(padded, 0).softmax(-1)
    each = F.kl_div(logp, target, reduction="none").masked_fill(padded, 0)
    return each.sum() / batch["attention_mask"].sum()
