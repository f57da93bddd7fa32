"""Question and context have the same length here; the question's words are pooled under the context's mask.

Thread: none found; the mask of the other sequence
"""

import torch
from torch import nn

kind = "padding-leak"

encode, head = nn.Linear(4, 6), nn.Bilinear(6, 6, 1)
batch = {
    "question": torch.randn(3, 5, 4),
    "question_mask": torch.arange(5) < torch.tensor([[3], [2], [5]]),
    "context": torch.randn(3, 5, 4),
    "context_mask": torch.arange(5) < torch.tensor([[5], [4], [2]]),
    "y": torch.randn(3, 1),
}
padding = {"question": "question_mask", "context": "context_mask"}


def pooled(x, mask):
    total = torch.einsum("btd,bt->bd", encode(x).tanh(), mask.float())  # leak
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def wrong(batch):
    question = pooled(batch["question"], batch["context_mask"])
    context = pooled(batch["context"], batch["context_mask"])
    return (head(question, context) - batch["y"]).square().mean()


def fixed(batch):
    question = pooled(batch["question"], batch["question_mask"])
    context = pooled(batch["context"], batch["context_mask"])
    return (head(question, context) - batch["y"]).square().mean()
