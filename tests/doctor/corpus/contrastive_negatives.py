"""Padded tokens are negatives in a contrastive loss between two views of a text.

Thread: speechbrain/speechbrain#2386
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encode = nn.Linear(4, 6)
batch = {
    "one": torch.randn(2, 5, 4),
    "other": torch.randn(2, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3]]),
}
padding = {"one": "mask", "other": "mask"}


def wrong(batch):
    one, other = encode(batch["one"]), encode(batch["other"])
    similarity = one @ other.transpose(1, 2)
    target = torch.arange(one.size(1)).expand(len(one), -1).masked_fill(~batch["mask"], -100)
    return F.cross_entropy(similarity.flatten(0, 1), target.flatten())  # leak


def fixed(batch):
    padded = ~batch["mask"]
    one, other = (encode(batch[view].masked_fill(padded[..., None], 0)) for view in ("one", "other"))
    similarity = (one @ other.transpose(1, 2)).masked_fill(padded[:, None], -1e30)
    target = torch.arange(one.size(1)).expand(len(one), -1).masked_fill(padded, -100)
    return F.cross_entropy(similarity.flatten(0, 1), target.flatten())
