"""An actor and a critic learn from padded episodes: generalised advantages, clipped ratios, an entropy bonus.

After PyTorch's tutorial "Reinforcement learning (PPO)", on episodes of unequal length with forbidden actions.
"""

import torch
import torch.nn.functional as F
from torch import nn

ACTIONS, STATES, GAMMA, LAMBDA, CLIP = 3, 4, 0.95, 0.9, 0.2


class Corridor:
    """Walk to the right end; each step costs something. The third action is allowed at the left end only."""

    def __init__(self, length, seed):
        self.length, self.draw = length, torch.Generator().manual_seed(seed)

    def episode(self, policy, longest):
        place, states, actions, rewards, allowed = 0, [], [], [], []
        while place < self.length and len(states) < longest:
            state = torch.tensor([place / 5, self.length / 5, len(states) / 5, 1.0])
            may = torch.tensor([True, True, place == 0])
            probability = policy(state, may)
            action = int(torch.multinomial(probability, 1, generator=self.draw))
            place = max(0, place + (1, -1, 2)[action])
            states.append(state)
            actions.append(action)
            allowed.append(may)
            rewards.append(1.0 if place >= self.length else -0.1)
        return torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(allowed)


def collate(episodes, longest):
    """Episodes padded to one length, with the mask of the steps that were made."""
    count = len(episodes)
    batch = {
        "states": torch.zeros(count, longest, STATES),
        "actions": torch.zeros(count, longest, dtype=torch.long),
        "rewards": torch.zeros(count, longest),
        "allowed": torch.ones(count, longest, ACTIONS, dtype=torch.bool),
        "mask": torch.zeros(count, longest, dtype=torch.bool),
    }
    for i, (states, actions, rewards, allowed) in enumerate(episodes):
        n = len(actions)
        batch["states"][i, :n], batch["actions"][i, :n] = states, actions
        batch["rewards"][i, :n], batch["allowed"][i, :n], batch["mask"][i, :n] = rewards, allowed, True
    return batch


class ActorCritic(nn.Module):
    """One body, two heads."""

    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, ACTIONS), nn.Linear(width, 1)

    def forward(self, states, allowed):
        hidden = self.body(states)
        logits = self.actor(hidden).masked_fill(~allowed, -1e9)
        return logits.log_softmax(-1), self.critic(hidden).squeeze(-1)


def advantages_of(rewards, values, mask):
    """Backwards in time; past the end of an episode there is neither value nor advantage."""
    advantages, following, next_value = [], torch.zeros(len(rewards)), torch.zeros(len(rewards))
    for t in reversed(range(rewards.size(1))):
        error = rewards[:, t] + GAMMA * next_value - values[:, t]
        following = torch.where(mask[:, t], error + GAMMA * LAMBDA * following, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], 0.0)
        advantages.insert(0, following)
    return torch.stack(advantages, 1)


def whitened(x, mask):
    """Mean 0 and variance 1 over the steps that were made."""
    count = mask.sum()
    centred = (x - x.masked_fill(~mask, 0).sum() / count).masked_fill(~mask, 0)
    return centred / (centred.square().sum() / count + 1e-6).sqrt()


def policy(state, allowed):
    with torch.no_grad():
        return model(state, allowed)[0].exp()


torch.manual_seed(1)
model = ActorCritic()
batch = collate([Corridor(length, length).episode(policy, 7) for length in (1, 2, 5)], 7)
with torch.no_grad():
    old, _ = model(batch["states"], batch["allowed"])
    batch["old_logp"] = old.gather(2, batch["actions"][..., None]).squeeze(-1) - 0.05
padding = dict.fromkeys(("states", "actions", "rewards", "old_logp"), "mask")


def step(batch):
    """The clipped objective, the error of the critic and the entropy, each the mean over steps that were made."""
    mask = batch["mask"]
    logp, values = model(batch["states"].masked_fill(~mask[..., None], 0), batch["allowed"])
    actions = batch["actions"].masked_fill(~mask, 0)
    taken = logp.gather(2, actions[..., None]).squeeze(-1)
    raw = advantages_of(batch["rewards"], values.detach(), mask)
    advantages, returns = whitened(raw, mask), (raw + values.detach()).masked_fill(~mask, 0)
    ratio = (taken - batch["old_logp"]).masked_fill(~mask, 0).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    error = F.smooth_l1_loss(values, returns, reduction="none")
    entropy = -(logp.exp() * logp).sum(-1)
    each = -gain + 0.5 * error - 0.01 * entropy
    return each.masked_fill(~mask, 0).sum() / mask.sum()


def train(steps=3):
    """Several steps on one batch of episodes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        step(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
