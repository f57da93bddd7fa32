"""Mean and standard deviation over time describe a speaker; both include padded frames.

Thread: NVIDIA-NeMo/Speech#5401
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

frames, speaker = nn.Linear(4, 6), nn.Linear(6, 3)
batch = {
    "frames": torch.randn(3, 7, 4),
    "real": torch.arange(7) < torch.tensor([[7], [4], [5]]),
    "speaker": torch.tensor([0, 1, 2]),
}
padding = {"frames": "real"}


def wrong(batch):
    hidden = frames(batch["frames"]).tanh()
    spread = hidden.std(1)  # leak
    return F.cross_entropy(speaker(spread), batch["speaker"])


def fixed(batch):
    real = batch["real"][..., None]
    hidden = frames(batch["frames"]).tanh().masked_fill(~real, 0)
    count = real.sum(1).clamp(min=1)
    centre = hidden.sum(1, keepdim=True) / count[:, None]
    variance = (hidden - centre).masked_fill(~real, 0).square().sum(1) / count
    return F.cross_entropy(speaker((variance + 1e-6).sqrt()), batch["speaker"])
