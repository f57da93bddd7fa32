"""A model of histories gets the sum of future rewards instead of past ones.

Thread: none found; looked for returns-to-go as inputs of a model that must not see the future
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

rnn, head = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 4)
torch.manual_seed(1)
batch = {
    "observations": torch.randn(3, 7, 4),
    "rewards": torch.randn(3, 7),
    "lengths": torch.tensor([7, 5, 6]),
    "action_labels": torch.tensor(
        [[0, 1, 2, 3, 1, 0, 2], [3, 2, 1, 0, 0, -100, -100], [1, 1, 2, 0, 3, 3, -100]]
    ),
}


def loss(sums, batch):
    hidden, _ = rnn(torch.cat([batch["observations"], sums[..., None]], -1))
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["action_labels"])


def wrong(batch):
    real = torch.arange(7) < batch["lengths"][:, None]
    rewards = batch["rewards"] * real
    return loss(rewards.flip(1).cumsum(1).flip(1), batch)  # leak


def fixed(batch):
    real = torch.arange(7) < batch["lengths"][:, None]
    rewards = batch["rewards"] * real
    return loss(rewards.cumsum(1), batch)
