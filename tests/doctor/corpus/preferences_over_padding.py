"""Preference learning: the log-probability of an answer is summed over its padding.

Thread: 0xallam/Direct-Preference-Optimization#4
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
batch = {
    "chosen": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "rejected": torch.tensor([[3, 9, 0, 0], [7, 10, 11, 0]]),
    "chosen_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "rejected_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]),
}
padding = {"chosen": "chosen_mask", "rejected": "rejected_mask"}


def token_logp(ids):
    logp = head(embed(ids[:, :-1])).log_softmax(-1)
    return logp.gather(2, ids[:, 1:, None]).squeeze(-1)


def wrong(batch):
    chosen = token_logp(batch["chosen"]).sum(1)  # leak
    rejected = token_logp(batch["rejected"]).sum(1)  # leak
    return -F.logsigmoid(chosen - rejected).mean()


def fixed(batch):
    chosen = token_logp(batch["chosen"]).masked_fill(batch["chosen_mask"][:, 1:] == 0, 0).sum(1)
    rejected = token_logp(batch["rejected"]).masked_fill(batch["rejected_mask"][:, 1:] == 0, 0).sum(1)
    return -F.logsigmoid(chosen - rejected).mean()
