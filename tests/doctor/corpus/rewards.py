"""Policies: values, advantages and returns of padded episodes."""

from __future__ import annotations

import torch
from torch import nn

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "NovaSky-AI/SkyRL#1305")
def advantages_normalised(wrong):
    """Advantages are centred over the batch, including padded steps."""
    policy = nn.Linear(3, 4)
    batch = {
        "states": torch.randn(3, 5, 3),
        "actions": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 0], [3, 0, 1, 0, 0]]),
        "advantages": torch.randn(3, 5),
        "mask": lasting(5, 2, 3),
    }

    def policy_loss(batch, advantages):
        padded = ~batch["mask"]
        logp = policy(batch["states"].masked_fill(padded[..., None], 0)).log_softmax(-1)
        taken = logp.gather(2, batch["actions"].masked_fill(padded, 0)[..., None]).squeeze(-1)
        return -(taken * advantages.masked_fill(padded, 0)).sum() / batch["mask"].sum()

    def step(batch):
        if wrong:
            advantages = batch["advantages"]
            centred = advantages - advantages.mean()  # leak
        else:
            advantages = batch["advantages"].masked_fill(~batch["mask"], 0)
            centred = advantages - advantages.sum() / batch["mask"].sum()
        return policy_loss(batch, centred)

    return Case(step, batch, padding={"states": "mask", "actions": "mask", "advantages": "mask"})


@pair("padding-leak", "radixark/miles#1827")
def advantages_walk_back_over_padding(wrong):
    """Generalised advantages are summed from the end of the tensor, which for a short episode is padding."""
    critic, policy = nn.Linear(3, 1), nn.Linear(3, 2)
    batch = {
        "states": torch.randn(3, 5, 3),
        "actions": torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]),
        "rewards": torch.randn(3, 5),
        "mask": lasting(5, 2, 3),
    }

    def loss_of(batch, advantages):
        logp = policy(batch["states"]).log_softmax(-1).gather(2, batch["actions"][..., None]).squeeze(-1)
        return -(logp * advantages)[batch["mask"]].mean()

    def step(batch):
        values = critic(batch["states"]).squeeze(-1)
        running, advantages = torch.zeros(len(values)), []
        if wrong:
            for t in reversed(range(values.size(1))):
                running = batch["rewards"][:, t] - values[:, t] + 0.9 * running  # leak
                advantages.insert(0, running)
        else:
            for t in reversed(range(values.size(1))):
                running = batch["rewards"][:, t] - values[:, t] + 0.9 * running
                running = torch.where(batch["mask"][:, t], running, 0.0)
                advantages.insert(0, running)
        return loss_of(batch, torch.stack(advantages, 1))

    return Case(step, batch, padding={"states": "mask", "actions": "mask", "rewards": "mask"})


@pair("padding-leak", "alibaba/ROLL#447")
def bootstrapped_from_padding(wrong):
    """Temporal differences: the last step of an episode is bootstrapped from the value of the padding after it."""
    critic = nn.Linear(3, 1)
    batch = {"states": torch.randn(3, 5, 3), "rewards": torch.randn(3, 5), "mask": lasting(5, 2, 3)}

    def step(batch):
        if wrong:
            values = critic(batch["states"]).squeeze(-1)
            after = torch.cat([values[:, 1:], torch.zeros(len(values), 1)], 1)
            error = batch["rewards"] + 0.9 * after - values  # leak
            return error.masked_fill(~batch["mask"], 0).square().sum() / batch["mask"].sum()
        padded = ~batch["mask"]
        values = critic(batch["states"].masked_fill(padded[..., None], 0)).squeeze(-1).masked_fill(padded, 0)
        after = torch.cat([values[:, 1:], torch.zeros(len(values), 1)], 1)
        error = batch["rewards"] + 0.9 * after - values
        return error.masked_fill(padded, 0).square().sum() / batch["mask"].sum()

    return Case(step, batch, padding={"states": "mask", "rewards": "mask"})


@pair("padding-leak", "natolambert/rlhf-book#216")
def returns_over_padding(wrong):
    """The return of a step sums the later rewards; for a short episode it includes padding."""
    policy = nn.Linear(3, 4)
    batch = {
        "observations": torch.randn(3, 5, 3),
        "actions": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 0], [3, 0, 1, 0, 0]]),
        "rewards": torch.randn(3, 5),
        "mask": lasting(5, 2, 3),
    }

    def policy_loss(batch, returns):
        padded = ~batch["mask"]
        logp = policy(batch["observations"].masked_fill(padded[..., None], 0)).log_softmax(-1)
        taken = logp.gather(2, batch["actions"].masked_fill(padded, 0)[..., None]).squeeze(-1)
        return -(taken * returns.masked_fill(padded, 0)).sum() / batch["mask"].sum()

    def step(batch):
        if wrong:
            returns = batch["rewards"].flip(1).cumsum(1).flip(1)  # leak
        else:
            rewards = batch["rewards"].masked_fill(~batch["mask"], 0)
            returns = rewards.flip(1).cumsum(1).flip(1)
        return policy_loss(batch, returns)

    return Case(step, batch, padding={"observations": "mask", "actions": "mask", "rewards": "mask"})
