"""A slow sensor is resampled by linear interpolation to its next sample.

Thread: none found; looked for linear interpolation or upsampling that reads the next frame in a causal model
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

rnn, head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 1)
torch.manual_seed(1)
batch = {
    "readings": torch.randn(2, 12, 4),  # the last of the four is new at every third step
    "targets": torch.randn(2, 12),
    "weights": torch.tensor([[1.0] * 12, [0.0] * 3 + [1.0] * 9]),
}


def error(fast, slow, batch):
    hidden, _ = rnn(torch.cat([fast, slow], -1))
    weights = batch["weights"]
    return ((head(hidden).squeeze(-1) - batch["targets"]) ** 2 * weights).sum() / weights.sum()


def wrong(batch):
    fast, slow = batch["readings"][..., :3], batch["readings"][:, ::3, 3]
    slow = F.interpolate(slow[:, None], size=fast.size(1), mode="linear")  # leak
    return error(fast, slow.transpose(1, 2), batch)


def fixed(batch):
    fast, slow = batch["readings"][..., :3], batch["readings"][:, ::3, 3]
    slow = slow.repeat_interleave(3, 1)
    return error(fast, slow[..., None], batch)
