"""Losses that are divided by what one rank has."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.doctor.across_ranks.step import labelled, samples, step, tokens


def over_ranks(count):
    count = count.clone()
    dist.all_reduce(count)
    return count / dist.get_world_size()


@step("denominator", "pytorch/torchtitan#2206")
def token_mean(wrong):
    """Each rank divides by its own tokens."""
    model, batch = nn.Linear(4, 1), tokens()

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]
        count = batch["mask"].sum()
        if not wrong:
            count = over_ranks(count)
        return losses.sum() / count  # leak

    return step, batch


@step("denominator", "huggingface/transformers#34242")
def cross_entropy(wrong):
    """The mean of cross_entropy is that of the labels of one rank."""
    model, batch = nn.Linear(4, 5), labelled()

    def step(batch):
        logits, labels = model(batch["x"]).flatten(0, 1), batch["labels"].flatten()
        if wrong:
            return F.cross_entropy(logits, labels)  # leak
        total = F.cross_entropy(logits, labels, reduction="sum")
        return total / over_ranks((labels != -100).sum())

    return step, batch


@step("denominator", "verl-project/verl#5366")
def world_size_forgotten(wrong):
    """The count is that of all ranks, and the average over the ranks divides once more."""
    model, batch = nn.Linear(4, 5), labelled()

    def step(batch):
        total = F.cross_entropy(model(batch["x"]).mT, batch["labels"], reduction="sum")
        count = (batch["labels"] != -100).sum()
        dist.all_reduce(count)
        loss = total / count  # leak
        return loss if wrong else loss * dist.get_world_size()

    return step, batch


@step("denominator")
def world_size_times_too_often(wrong):
    """The mean over samples is multiplied by the number of ranks."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        loss = F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        return loss * dist.get_world_size() if wrong else loss  # leak

    return step, batch


@step("denominator")
def sum_over_samples(wrong):
    """A sum over the samples becomes their sum divided by the number of ranks."""
    model, batch = nn.Linear(4, 1), samples()

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).abs()
        if wrong:
            return losses.sum()  # leak
        return losses.sum() * dist.get_world_size()

    return step, batch


@step("denominator")
def class_weights(wrong):
    """With class weights cross_entropy divides by the weights of one rank's labels."""
    model, batch, weights = nn.Linear(4, 5), labelled(), torch.tensor([1.0, 2.0, 5.0, 0.5, 1.0])

    def step(batch):
        logits, labels = model(batch["x"]).flatten(0, 1), batch["labels"].flatten()
        if wrong:
            return F.cross_entropy(logits, labels, weights)  # leak
        total = F.cross_entropy(logits, labels, weights, reduction="sum")
        return total / over_ranks(weights[labels.clamp(min=0)][labels != -100].sum())

    return step, batch


@step("denominator", "NVIDIA/Megatron-LM#7452")
def z_loss(wrong):
    """The main loss counts over the ranks, the z-loss beside it does not."""
    model, batch = nn.Linear(4, 5), labelled()

    def step(batch):
        logits, real = model(batch["x"]), batch["labels"] != -100
        count = over_ranks(real.sum())
        main = F.cross_entropy(logits.mT, batch["labels"], reduction="sum") / count
        z = (logits.logsumexp(-1).square() * real).sum()
        z = z / (real.sum() if wrong else count)  # leak
        return main + 1e-2 * z

    return step, batch


@step("denominator")
def dice(wrong):
    """A ratio of sums over all pixels is one of the pixels of a rank."""
    model, batch = (
        nn.Conv2d(1, 1, 3, padding=1),
        {"x": torch.randn(8, 1, 6, 6), "y": (torch.rand(8, 1, 6, 6) > 0.7).float()},
    )

    def step(batch):
        p = model(batch["x"]).sigmoid()
        dims = None if wrong else (1, 2, 3)
        both, either = (p * batch["y"]).sum(dims), (p + batch["y"]).sum(dims)
        loss = 1 - (2 * both + 1) / (either + 1)  # leak
        return loss.mean()

    return step, batch


@step("denominator", "verl-project/verl#7321")
def micro_batches(wrong):
    """The count is that of all micro-batches of a rank, not of all ranks."""
    model, batch = nn.Linear(4, 5), labelled((7, 3, 5, 1, 6, 2, 4, 5, 7, 7, 6, 5, 1, 2, 1, 3))

    def step(batch):
        count = (batch["labels"] != -100).sum()
        if not wrong:
            count = over_ranks(count)
        for x, labels in zip(batch["x"].split(2), batch["labels"].split(2), strict=True):
            total = F.cross_entropy(model(x).mT, labels, reduction="sum")
            (total / count).backward()  # leak

    return step, batch


@step("denominator")
def accumulator(wrong):
    """The gradients of micro-batches are divided by their number, and not by all tokens."""
    model, batch = nn.Linear(4, 1), tokens()
    accumulated = mg.GradientAccumulator(model)

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square()
        if wrong:
            return (losses * batch["mask"]).sum() / batch["mask"].sum()  # leak
        accumulated.backward(losses[:1], mask=batch["mask"][:1])
        losses = (model(batch["x"][1:]).squeeze(-1) - batch["y"][1:]).square()
        accumulated.backward(losses, mask=batch["mask"][1:])
        return accumulated.finish()

    return step, batch


@step("denominator")
def one_rank_without_tokens(wrong):
    """A rank has no labels, and divides 0 by 0."""
    model, batch = nn.Linear(4, 5), labelled((7, 3, 5, 2, 6, 2, 0, 0))

    def step(batch):
        total = F.cross_entropy(model(batch["x"]).mT, batch["labels"], reduction="sum")
        count = (batch["labels"] != -100).sum()
        return total / (count if wrong else over_ranks(count))  # leak

    return step, batch


@step("denominator")
def autocast(wrong):
    """In bfloat16, too: the difference is larger than rounding."""
    model, batch = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 1)), tokens()

    def step(batch):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch["x"]).squeeze(-1)
        losses = (outputs.float() - batch["y"]).square() * batch["mask"]
        if wrong:
            return losses.sum() / batch["mask"].sum()  # leak
        return (losses.sum(1) / batch["mask"].sum(1)).mean()

    return step, batch


@step("denominator")
def counts_as_objects(wrong):
    """Ranks send their counts as Python objects; the wrong one takes the first."""
    model, batch = nn.Linear(4, 1), tokens()

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, int(batch["mask"].sum()))
        count = counts[0] if wrong else sum(counts) / len(counts)
        return losses.sum() / count  # leak

    return step, batch


@step("")
def sequence_mean(wrong):
    """Each sequence counts once, on whatever rank it is."""
    model, batch = nn.Linear(4, 1), tokens()

    def step(batch):
        losses = (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]
        return (losses.sum(1) / batch["mask"].sum(1)).mean()

    return step, batch


@step("")
def logging_only(wrong):
    """The loss is averaged over the ranks only to be shown."""
    model, batch, shown = nn.Linear(4, 1), samples(), []

    def step(batch):
        loss = F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        shown.append(seen.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            shown.append(0.0)
        dist.barrier()
        return loss

    return step, batch
