"""Losses that take a statistic of the samples of one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather

import maskgrad as mg
from tests.doctor.across_ranks.step import samples, step


@step("sample-coupling")
def batch_norm(wrong):
    """BatchNorm takes the mean and the variance of one rank."""
    norm = nn.BatchNorm1d(6) if wrong else nn.SyncBatchNorm(6)
    first, last, batch = nn.Linear(4, 6), nn.Linear(6, 1), samples()

    def step(batch):
        hidden = norm(first(batch["x"]))  # leak
        return F.mse_loss(last(hidden.relu()).squeeze(-1), batch["y"])

    return step, batch


@step("sample-coupling")
def whitened_advantages(wrong):
    """Advantages are whitened with the mean and the deviation of one rank."""
    policy, batch = nn.Linear(4, 3), {**samples(), "action": torch.tensor([0, 2, 1, 1, 0, 2, 2, 0])}

    def step(batch):
        advantage = batch["y"]
        mean, square = advantage.mean(), advantage.square().mean()  # leak
        if not wrong:
            mean, square = mg.distributed.mean(advantage), mg.distributed.mean(advantage.square())
        advantage = (advantage - mean) / (square - mean.square()).sqrt()
        logp = policy(batch["x"]).log_softmax(-1).gather(1, batch["action"][:, None])[:, 0]
        return -(logp * advantage).mean()

    return step, batch


@step("sample-coupling")
def contrastive(wrong):
    """Negatives are those of one rank."""
    left, right, batch = nn.Linear(4, 6), nn.Linear(4, 6), {"a": torch.randn(8, 4), "b": torch.randn(8, 4)}

    def step(batch):
        a, b = F.normalize(left(batch["a"])), F.normalize(right(batch["b"]))
        others = b if wrong else torch.cat(all_gather(b))
        labels = torch.arange(len(a)) + (0 if wrong else dist.get_rank() * len(a))
        return F.cross_entropy(a @ others.T / 0.1, labels)  # leak

    return step, batch


@step("sample-coupling", "modelscope/ms-swift#10150")
def gathered_without_gradient(wrong):
    """Negatives of other ranks are gathered without a gradient."""
    left, right, batch = nn.Linear(4, 6), nn.Linear(4, 6), {"a": torch.randn(8, 4), "b": torch.randn(8, 4)}

    def step(batch):
        a, b = F.normalize(left(batch["a"])), F.normalize(right(batch["b"]))
        if wrong:
            gathered = [torch.empty_like(b) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, b)  # leak
            gathered[dist.get_rank()] = b
        else:
            gathered = all_gather(b)
        labels = torch.arange(len(a)) + dist.get_rank() * len(a)
        return F.cross_entropy(a @ torch.cat(gathered).T / 0.1, labels)

    return step, batch


@step("sample-coupling")
def hardest_of_the_batch(wrong):
    """Only the largest loss of a rank counts, not that of the batch."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square()
        if not wrong:
            losses = torch.cat(all_gather(losses))
        return losses.max()  # leak

    return step, batch
