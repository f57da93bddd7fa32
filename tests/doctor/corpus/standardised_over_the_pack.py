"""Features are standardised over the time axis of a packed row, with one mean and deviation for all recordings.

Thread: none found; instance norm, mean and deviation over time of packed sequences
"""

import torch
from torch import nn

kind = "document-leak"

encode, head = nn.Linear(3, 6), nn.Linear(6, 1)
batch = {
    "frames": torch.randn(2, 8, 3),
    "recording": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]),
    "targets": torch.randn(2, 8),
    "loss_mask": torch.tensor([[1, 1, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1, 1, 1]]),
}
documents = {"frames": batch["recording"]}


def loss_of(batch, hidden):
    errors = (head(hidden.tanh()).squeeze(-1) - batch["targets"]).square()
    return (errors * batch["loss_mask"]).sum() / batch["loss_mask"].sum()


def wrong(batch):
    hidden = encode(batch["frames"])
    std, mean = torch.std_mean(hidden, 1, keepdim=True)  # leak
    return loss_of(batch, (hidden - mean) / (std + 1e-5))


def fixed(batch):
    hidden, recording = encode(batch["frames"]), batch["recording"]
    same = (recording[:, :, None] == recording[:, None]).to(hidden.dtype)
    same = same / same.sum(-1, keepdim=True)
    centred = hidden - same @ hidden
    return loss_of(batch, centred / ((same @ centred.square()).sqrt() + 1e-5))
