"""The partition function of a linear-chain CRF includes the padding.

Thread: PaddlePaddle/PaddleNLP#1401
"""

import torch
from torch import nn

kind = "padding-leak"

emit, transitions = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 4))
batch = {
    "x": torch.randn(3, 5, 3),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [2]]),
    "tags": torch.tensor([[0, 1, 2, 3, 0], [1, 1, 2, 0, 0], [3, 2, 0, 0, 0]]),
}
padding = {"x": "mask", "tags": "mask"}


def path_score(emissions, tags, mask):
    tags = tags.masked_fill(~mask, 0)
    single = emissions.gather(2, tags[..., None]).squeeze(-1).masked_fill(~mask, 0)
    pairs = transitions[tags[:, :-1], tags[:, 1:]].masked_fill(~mask[:, 1:], 0)
    return single.sum(1) + pairs.sum(1)


def wrong(batch):
    emissions, mask = emit(batch["x"]), batch["mask"]
    alpha = emissions[:, 0]
    for t in range(1, emissions.size(1)):
        alpha = (alpha[:, :, None] + transitions + emissions[:, None, t]).logsumexp(1)  # leak
    return (alpha.logsumexp(1) - path_score(emissions, batch["tags"], mask)).sum()


def fixed(batch):
    mask = batch["mask"]
    emissions = emit(batch["x"]).masked_fill(~mask[..., None], 0)
    alpha = emissions[:, 0]
    for t in range(1, emissions.size(1)):
        onward = (alpha[:, :, None] + transitions + emissions[:, None, t]).logsumexp(1)
        alpha = torch.where(mask[:, t, None], onward, alpha)
    return (alpha.logsumexp(1) - path_score(emissions, batch["tags"], mask)).sum()
