"""Instance normalisation of a recording: mean and variance over all frames, including padding.

Thread: pytorch/pytorch#81985
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

project, head = nn.Linear(3, 4), nn.Linear(4, 5)
batch = {
    "audio": torch.randn(2, 6, 3),
    "mask": torch.arange(6) < torch.tensor([[6], [3]]),
    "labels": torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, -100, -100, -100]]),
}
padding = {"audio": "mask"}


def wrong(batch):
    hidden = project(batch["audio"]).transpose(1, 2)
    normed = F.instance_norm(hidden)  # leak
    return F.cross_entropy(head(normed.transpose(1, 2)).transpose(1, 2), batch["labels"])


def fixed(batch):
    real = batch["mask"][..., None]
    hidden = project(batch["audio"]).masked_fill(~real, 0)
    count = real.sum(1, keepdim=True).clamp(min=1)
    centred = (hidden - hidden.sum(1, keepdim=True) / count).masked_fill(~real, 0)
    variance = centred.square().sum(1, keepdim=True) / count
    normed = centred / (variance + 1e-5).sqrt()
    return F.cross_entropy(head(normed).transpose(1, 2), batch["labels"])
