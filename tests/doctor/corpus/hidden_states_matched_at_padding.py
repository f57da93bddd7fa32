"""Hidden states of a student are matched to the teacher's at every position.

Thread: arcee-ai/DAM#16
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

student = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
teacher = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).requires_grad_(False).eval()
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"x": "mask"}
model = student


def states_of(batch):
    with torch.no_grad():
        wanted = teacher(batch["x"], src_key_padding_mask=~batch["mask"])
    return student(batch["x"], src_key_padding_mask=~batch["mask"]), wanted


def wrong(batch):
    found, wanted = states_of(batch)
    return F.smooth_l1_loss(found, wanted)  # leak


def fixed(batch):
    found, wanted = states_of(batch)
    each = F.smooth_l1_loss(found, wanted, reduction="none").mean(-1)
    return (each * batch["mask"]).sum() / batch["mask"].sum()
