"""In a pairwise ranking loss, padded documents count as the worst.

Thread: huggingface/sentence-transformers#3827
"""

import torch
from torch import nn

kind = "padding-leak"

score = nn.Linear(4, 1)
batch = {
    "documents": torch.randn(3, 5, 4),
    "relevance": torch.tensor(
        [[3.0, 1.0, 0.0, 2.0, 1.0], [2.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0, 0.0]]
    ),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"documents": "mask", "relevance": "mask"}


def hinge(batch):
    scores = score(batch["documents"]).squeeze(-1)
    better = batch["relevance"][:, :, None] > batch["relevance"][:, None, :]
    margins = (1 - (scores[:, :, None] - scores[:, None, :])).relu()
    return margins, better


def wrong(batch):
    margins, better = hinge(batch)
    chosen = better & batch["mask"][:, :, None]
    return (margins * chosen).sum() / 6  # leak


def fixed(batch):
    margins, better = hinge(batch)
    chosen = better & batch["mask"][:, :, None] & batch["mask"][:, None, :]
    return (margins * chosen).sum() / 6
