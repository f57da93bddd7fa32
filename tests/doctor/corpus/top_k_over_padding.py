"""The three highest scores of a bag may be padded instances.

Thread: none found; the largest scores of a padded bag
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

score = nn.Linear(4, 1)
batch = {
    "instances": torch.randn(3, 6, 4),
    "mask": torch.arange(6) < torch.tensor([[6], [4], [3]]),
    "y": torch.tensor([1.0, 0.0, 1.0]),
}
padding = {"instances": "mask"}


def wrong(batch):
    scores = score(batch["instances"]).squeeze(-1)
    best = scores.topk(3, 1).values  # leak
    return F.binary_cross_entropy_with_logits(best.mean(1), batch["y"])


def fixed(batch):
    padded = ~batch["mask"]
    scores = score(batch["instances"].masked_fill(padded[..., None], 0)).squeeze(-1)
    best = scores.masked_fill(padded, -1e30).topk(3, 1).values
    best = best.masked_fill(best < -1e29, 0)
    return F.binary_cross_entropy_with_logits(best.mean(1), batch["y"])
