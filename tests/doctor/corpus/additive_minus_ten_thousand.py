"""A large negative number instead of minus infinity: a padded key with a large score still wins.

Thread: TransformerLensOrg/TransformerLens#319
"""

import torch
from torch import nn

kind = "padding-leak"

query, key, value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
}
padding = {"x": "mask"}


def wrong(batch):
    x, mask = batch["x"], batch["mask"]
    scores = query(x) @ key(x).transpose(1, 2) + (1 - mask[:, None].float()) * -1e4
    weights = scores.softmax(-1)  # leak
    out = (weights @ value(x)).masked_fill(~mask[..., None], 0)
    return out.square().sum() / mask.sum()


def fixed(batch):
    x, mask = batch["x"].masked_fill(~batch["mask"][..., None], 0), batch["mask"]
    scores = query(x) @ key(x).transpose(1, 2)
    weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(-1)
    out = (weights @ value(x)).masked_fill(~mask[..., None], 0)
    return out.square().sum() / mask.sum()
