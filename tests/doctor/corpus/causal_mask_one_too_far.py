"""The diagonal of a causal mask is one too far to the right, so that each token sees the next one.

Thread: none found; looked for a causal mask that is off by one and shows the next token
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
query, key, value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 10, 11, 1]]),
}


def wrong(batch):
    x = embed(batch["input_ids"])
    scores = query(x) @ key(x).transpose(1, 2) / 8**0.5
    allowed = torch.ones_like(scores).tril(diagonal=1)
    weights = scores.masked_fill(allowed == 0, -torch.inf).softmax(-1)  # leak
    return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])


def fixed(batch):
    x = embed(batch["input_ids"])
    scores = query(x) @ key(x).transpose(1, 2) / 8**0.5
    allowed = torch.ones_like(scores).tril()
    weights = scores.masked_fill(allowed == 0, -torch.inf).softmax(-1)
    return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])
