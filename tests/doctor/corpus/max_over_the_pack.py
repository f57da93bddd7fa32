"""The maximum over time is over the whole row, one summary for all packed documents.

Thread: none found; max pooling over time of a packed row, one pooled vector for several documents
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, head = nn.Embedding(12, 6), nn.Linear(12, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "example": torch.tensor([[7, 7, 7, 3, 3, 3, 3, 3], [5, 5, 5, 5, 5, 9, 9, 9]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]]),
}
documents = {"input_ids": batch["example"]}


def wrong(batch):
    hidden = embed(batch["input_ids"])
    topic = hidden.amax(1, keepdim=True).expand_as(hidden)  # leak
    logits = head(torch.cat([hidden, topic], -1))
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"])


def fixed(batch):
    hidden, example = embed(batch["input_ids"]), batch["example"]
    same = example[:, :, None] == example[:, None]
    topic = hidden[:, None].masked_fill(~same[..., None], float("-inf")).amax(2)
    logits = head(torch.cat([hidden, topic], -1))
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"])
