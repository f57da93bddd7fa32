"""A temporal convolutional network forecasts series of unequal length that have holes.

After "An empirical evaluation of generic convolutional and recurrent networks for sequence modeling" (2018).
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def series(lengths, seed=0):
    """Waves with noise, some values missing (NaN)."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for n in lengths:
        phase, speed = 6 * torch.rand(1, generator=draw), 0.3 + torch.rand(1, generator=draw)
        wave = torch.sin(phase + speed * torch.arange(n)) + 0.1 * torch.randn(n, generator=draw)
        wave[torch.rand(n, generator=draw) < 0.2] = math.nan
        made.append(wave)
    return made


def collate(rows):
    """Padded with NaN as well: at the end of a series there is nothing, as in its holes."""
    values = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)
    return {"values": values, "lengths": torch.tensor([len(row) for row in rows])}


class CausalConv(nn.Conv1d):
    """A convolution that sees the past alone."""

    def __init__(self, inside, outside, kernel, dilation):
        super().__init__(inside, outside, kernel, dilation=dilation)
        self.past = (kernel - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.past, 0)))


class ChannelNorm(nn.Module):
    """Each step by itself: neither time nor batch have a part in its mean and variance."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    """Two causal convolutions beside a way around them; what lies past the end stays 0."""

    def __init__(self, inside, outside, kernel, dilation):
        super().__init__()
        self.first = CausalConv(inside, outside, kernel, dilation)
        self.second = CausalConv(outside, outside, kernel, dilation)
        self.norms = nn.ModuleList([ChannelNorm(outside), ChannelNorm(outside)])
        self.around = nn.Conv1d(inside, outside, 1) if inside != outside else nn.Identity()
        self.dropout = nn.Dropout1d(0.1)

    def forward(self, x, real):
        hidden = self.dropout(F.relu(self.norms[0](self.first(x)))) * real
        hidden = self.dropout(F.relu(self.norms[1](self.second(hidden)))) * real
        return F.relu(hidden + self.around(x)) * real


class TCN(nn.Module):
    """Values and whether they are known, blocks of growing dilation, mean and spread of the next value."""

    def __init__(self, width=6, levels=3):
        super().__init__()
        sizes = [2] + [width] * levels
        self.blocks = nn.ModuleList(
            [Block(a, b, 2, 2**level) for level, (a, b) in enumerate(pairwise(sizes))]
        )
        self.head = nn.Conv1d(width, 2, 1)

    def forward(self, values, real):
        known = ~values.isnan()
        x = torch.stack([torch.where(known, values, 0.0), known.to(values.dtype)], 1) * real
        for block in self.blocks:
            x = block(x, real)
        mean, spread = self.head(x).unbind(1)
        return mean, F.softplus(spread) + 1e-2


model = TCN()
batch = collate(series([9, 5, 7, 3]))
padding = {"values": ~batch["values"].isnan()}


def step(batch):
    """Gaussian likelihood of each known value, given what came before it."""
    values, lengths = batch["values"], batch["lengths"]
    real = (torch.arange(values.size(1)) < lengths[:, None]).to(values.dtype)[:, None]
    mean, spread = model(values[:, :-1], real[..., :-1])
    target = values[:, 1:]
    known = ~target.isnan()
    target = torch.where(known, target, 0.0)
    each = 0.5 * ((target - mean) / spread).square() + spread.log()
    return each.masked_fill(~known, 0).sum() / known.sum().clamp(min=1)


def train(steps=3):
    """The usual loop, with a schedule."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        step(batch).backward()
        optimizer.step()
        schedule.step()
