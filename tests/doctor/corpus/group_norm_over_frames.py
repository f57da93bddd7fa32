"""A streaming network normalises each sample over all of its frames.

Thread: espnet/espnet#5900
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

encode, head = nn.Conv1d(4, 6, 3), nn.Conv1d(6, 4, 1)
over_frames, over_channels = nn.GroupNorm(1, 6), nn.LayerNorm(6)
torch.manual_seed(1)
batch = {
    "noisy": torch.randn(2, 10, 4),
    "target_speech": torch.randn(2, 10, 4),
    "target_mask": torch.tensor([[1.0] * 10, [1.0] * 7 + [0.0] * 3]),
}


def error(hidden, batch):
    mask = batch["target_mask"][..., None]
    return ((head(hidden).transpose(1, 2) - batch["target_speech"]) ** 2 * mask).sum() / mask.sum()


def wrong(batch):
    hidden = encode(F.pad(batch["noisy"].transpose(1, 2), (2, 0)))
    return error(over_frames(hidden).relu(), batch)  # leak


def fixed(batch):
    hidden = encode(F.pad(batch["noisy"].transpose(1, 2), (2, 0)))
    return error(over_channels(hidden.transpose(1, 2)).transpose(1, 2).relu(), batch)
