"""Learning-rate schedulers of torch drive the optimizers of maskgrad as they drive torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import PAPERS, bits, every_plain_optimizer, same_way

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=0.2, total_steps=12, cycle_momentum=_has_momentum(o)
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=3, cycle_momentum=False),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.0 if epoch == 2 else 1 / (epoch + 1)),
}


def _has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum"))


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@every_plain_optimizer
def test_schedules_are_those_of_torch(
    schedule: Callable[[Any], Any],
    ours: type[MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    if ours.__name__ == "SGD":
        options = {**options, "momentum": 0.9}
    start, gradients = torch.randn(3, 2), torch.randn(10, 3, 2)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = ours([p], **options), theirs([q], **options, **same_way(theirs))
    schedules = schedule(a), schedule(b)
    for gradient in gradients:
        p.grad, q.grad = gradient.clone(), gradient.clone()
        for optimizer, scheduler in zip((a, b), schedules, strict=True):
            optimizer.step()
            scheduler.step()
    if theirs in PAPERS.values():
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(bits(p), bits(q))


@every_plain_optimizer
def test_a_learning_rate_that_is_a_tensor_is_read_at_each_step(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    start, gradients = torch.randn(3, 2), torch.randn(4, 3, 2)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    rate = torch.tensor(0.5)
    a, b = ours([p], **{**options, "lr": rate}), ours([q], **{**options, "lr": 0.5})
    for gradient in gradients:
        p.grad, q.grad = gradient.clone(), gradient.clone()
        a.step()
        b.step()
        rate.mul_(0.5)
        b.param_groups[0]["lr"] *= 0.5
    torch.testing.assert_close(p, q)  # PyTorch computes with the tensor, ours with its number


@every_plain_optimizer
def test_groups_have_their_own_hyperparameters(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    start = torch.randn(2, 3, 2)
    groups = []
    for _ in range(2):
        p, q = (nn.Parameter(t.clone()) for t in start)
        groups.append([{"params": [p], "lr": 0.3}, {"params": [q], "maximize": True}])
    a, b = ours(groups[0], **options), theirs(groups[1], **options)
    for gradients in torch.randn(5, 2, 3, 2):
        for optimizer in (a, b):
            for group, gradient in zip(optimizer.param_groups, gradients, strict=True):
                group["params"][0].grad = gradient.clone()
            optimizer.step()
    for one, other in zip(*groups, strict=True):
        torch.testing.assert_close(one["params"][0], other["params"][0], rtol=1e-5, atol=1e-6)
