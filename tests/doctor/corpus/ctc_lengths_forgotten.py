"""CTC gets the length of the longest recording for all.

Thread: NVIDIA/OpenSeq2Seq#393
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

acoustic = nn.Linear(4, 5)
batch = {
    "frames": torch.randn(2, 6, 4),
    "frame_lengths": torch.tensor([6, 4]),
    "text": torch.tensor([[1, 2], [3, 4]]),
    "text_lengths": torch.tensor([2, 1]),
}
padding = {"frames": torch.arange(6) < batch["frame_lengths"][:, None]}


def wrong(batch):
    logp = acoustic(batch["frames"]).log_softmax(-1).transpose(0, 1)
    lengths = torch.full((logp.size(1),), logp.size(0))
    loss = F.ctc_loss(logp, batch["text"], lengths, batch["text_lengths"], reduction="sum")  # leak
    return loss / batch["text_lengths"].sum()


def fixed(batch):
    frames = batch["frames"]
    real = torch.arange(frames.size(1)) < batch["frame_lengths"][:, None]
    logp = acoustic(frames.masked_fill(~real[..., None], 0)).log_softmax(-1).transpose(0, 1)
    lengths, text_lengths = batch["frame_lengths"], batch["text_lengths"]
    loss = F.ctc_loss(logp, batch["text"], lengths, text_lengths, reduction="sum", zero_infinity=True)
    return loss / batch["text_lengths"].sum()
