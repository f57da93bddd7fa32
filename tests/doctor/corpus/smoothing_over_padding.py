"""Hand-written label smoothing: the uniform part includes padding, the other part ignores it.

Thread: pytorch/pytorch#73205
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 5)
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]),
    "labels": torch.tensor([[1, 2, 3, 4], [0, 3, -100, -100], [2, 2, 1, -100]]),
}


def wrong(batch):
    logp = head(embed(batch["input_ids"])).log_softmax(-1)
    hard = F.nll_loss(logp.transpose(1, 2), batch["labels"])
    smooth = -logp.mean()  # leak
    return 0.9 * hard + 0.1 * smooth


def fixed(batch):
    logp = head(embed(batch["input_ids"])).log_softmax(-1)
    hard = F.nll_loss(logp.transpose(1, 2), batch["labels"])
    smooth = -logp[batch["labels"] != -100].mean()
    return 0.9 * hard + 0.1 * smooth
