"""A node without neighbours divides by a degree of 0, and training is NaN from then on.

Thread: MrLeeeee/GCN-GAT-and-Graphsage#3
"""

import torch
from torch import nn

kind = "empty-row"

model = nn.Linear(3, 1)
batch = {
    "neighbours": torch.randn(4, 3, 3),
    "mask": torch.arange(3) < torch.tensor([[3], [0], [2], [3]]),
    "y": torch.randn(4),
}
padding = {"neighbours": "mask"}


def wrong(batch):
    messages = batch["neighbours"].masked_fill(~batch["mask"][..., None], 0).sum(1)
    mean = messages / batch["mask"].sum(1, keepdim=True)  # leak
    return (model(mean).squeeze(-1) - batch["y"]).square().mean()


def fixed(batch):
    messages = batch["neighbours"].masked_fill(~batch["mask"][..., None], 0).sum(1)
    mean = messages / batch["mask"].sum(1, keepdim=True).clamp(min=1)
    return (model(mean).squeeze(-1) - batch["y"]).square().mean()
