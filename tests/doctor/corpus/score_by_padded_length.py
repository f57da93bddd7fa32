"""Beams are compared by the mean log-probability of their tokens, divided by the longest one's length.

Thread: jingyaogong/minimind#298
"""

import torch
from torch import nn

kind = "padding-length"

model = nn.Linear(4, 6)
batch = {
    "states": torch.randn(4, 5, 4),
    "tokens": torch.tensor([[1, 2, 3, 4, 5], [2, 3, 0, 0, 0], [1, 1, 4, 0, 0], [5, 4, 3, 2, 0]]),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3], [4]]),
    "quality": torch.rand(4),
}
padding = {"states": "mask", "tokens": "mask"}


def summed(batch):
    logp = model(batch["states"]).log_softmax(-1)
    chosen = logp.gather(-1, batch["tokens"][..., None])[..., 0]
    return torch.where(batch["mask"], chosen, 0.0).sum(1)


def wrong(batch):
    score = summed(batch) / batch["tokens"].shape[1]  # leak
    return (score.exp() - batch["quality"]).square().mean()


def fixed(batch):
    score = summed(batch) / batch["mask"].sum(1).clamp(min=1)
    return (score.exp() - batch["quality"]).square().mean()
