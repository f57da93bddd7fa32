"""Gradients that the step itself, or a wrapper, sends; collectives that only some ranks reach."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.doctor.across_ranks.denominators import over_ranks
from tests.doctor.across_ranks.step import samples, step, tokens


@step("denominator")
def clipped_before_the_average(wrong):
    """Each rank clips its own gradient."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"]).backward()
        if wrong:
            clip_grad_norm_(model.parameters(), 0.1)  # leak
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        if not wrong:
            clip_grad_norm_(model.parameters(), 0.1)

    return step, batch


@step("denominator")
def summed_gradients(wrong):
    """Gradients are added over the ranks and not divided."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        loss = F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # leak
            if not wrong:
                p.grad /= dist.get_world_size()

    return step, batch


@step("denominator")
def two_optimizers(wrong):
    """The second loss reads parameters after the first step; its mean is one of tokens."""
    first, second, batch = nn.Linear(4, 4), nn.Linear(4, 1), tokens()
    steps = [torch.optim.SGD(part.parameters(), 0.1, momentum=0.9) for part in (first, second)]

    def step(batch):
        (first(batch["x"]).square().mean(-1) * batch["mask"]).sum(1).mean().backward()
        steps[0].step()
        steps[0].zero_grad()
        losses = (second(first(batch["x"])).squeeze(-1) - batch["y"]).square() * batch["mask"]
        count = batch["mask"].sum()
        (losses.sum() / (count if wrong else over_ranks(count))).backward()  # leak

    return step, batch


@step("denominator")
def rank_that_skips(wrong):
    """A rank without tokens takes no part in the exchange of the counts."""
    model, batch = nn.Linear(4, 1), tokens((7, 3, 5, 2, 6, 2, 0, 0))

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]
        count = batch["mask"].sum()
        if not wrong or count > 0:
            dist.all_reduce(count)  # leak
        return losses.sum() / count * dist.get_world_size()

    return step, batch


@step("denominator")
def other_order(wrong):
    """The first rank calls its collectives in another order."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        loss = F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        seen = loss.detach().clone()
        if wrong and dist.get_rank() == 0:
            dist.broadcast(seen, 0)  # leak
        dist.all_reduce(seen)  # leak
        return loss

    return step, batch


@step("denominator")
def loss_reduced_in_place(wrong):
    """The loss is averaged over the ranks in place before backward(), which divides the gradient, too."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        loss = F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        if wrong:
            dist.all_reduce(loss)
            loss = loss / dist.get_world_size()  # leak
        return loss

    return step, batch
