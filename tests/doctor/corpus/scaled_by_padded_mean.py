"""A time series is scaled by the mean size of its past, and the past is padded on the left.

Thread: DataDog/toto#57
"""

import torch
from torch import nn

kind = "padding-leak"

model = nn.GRUCell(1, 6)
head = nn.Linear(6, 1)
batch = {
    "past": torch.randn(3, 5),
    "observed": torch.arange(5) >= torch.tensor([[0], [2], [3]]),
    "future": torch.randn(3),
}
padding = {"past": "observed"}


def loss_of(batch, past, scale):
    state = torch.zeros(len(past), 6)
    for value, seen in zip((past / scale).unbind(1), batch["observed"].unbind(1), strict=True):
        state = torch.where(seen[:, None], model(value[:, None], state), state)
    return (head(state).squeeze(-1) * scale.squeeze(-1) - batch["future"]).abs().mean()


def wrong(batch):
    scale = batch["past"].abs().mean(1, keepdim=True)  # leak
    return loss_of(batch, batch["past"].masked_fill(~batch["observed"], 0), scale)


def fixed(batch):
    past = batch["past"].masked_fill(~batch["observed"], 0)
    scale = past.abs().sum(1, keepdim=True) / batch["observed"].sum(1, keepdim=True).clamp(min=1)
    return loss_of(batch, past, scale.clamp(min=1e-3))
