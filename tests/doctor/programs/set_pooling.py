"""Sets of unequal size: attention among members, pooling by learnt seeds, a label and a value for each set.

After the Set Transformer (2019) and Deep Sets (2017).
"""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES = 3


def sets(sizes, seed=0):
    """Points around a centre; the label says on which side it is, the value how far the points are spread."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for n in sizes:
        spread = 0.2 + torch.rand(1, generator=draw)
        centre = torch.randn(FEATURES, generator=draw)
        points = centre + spread * torch.randn(n, FEATURES, generator=draw)
        made.append((points, int(centre[0] > 0), float(spread)))
    return made


def collate(samples):
    """Members padded with zeros, which are points like others: only the mask tells."""
    longest = max(len(points) for points, _, _ in samples)
    members = torch.zeros(len(samples), longest, FEATURES)
    mask = torch.zeros(len(samples), longest, dtype=torch.bool)
    for i, (points, _, _) in enumerate(samples):
        members[i, : len(points)], mask[i, : len(points)] = points, True
    return {
        "members": members,
        "mask": mask,
        "label": torch.tensor([label for _, label, _ in samples]),
        "spread": torch.tensor([spread for *_, spread in samples]),
    }


class AttentionBlock(nn.Module):
    """Queries look at keys, of which only real ones count."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, queries, keys, mask):
        nothing = ~mask.any(1, keepdim=True)  # a set without members: let its queries look at zeros
        padded = ~mask & ~nothing
        keys = keys.masked_fill(~mask[..., None], 0)
        seen, _ = self.attention(queries, keys, keys, key_padding_mask=padded, need_weights=False)
        hidden = self.norms[0](queries + seen)
        return self.norms[1](hidden + self.mlp(hidden))


class InducedBlock(nn.Module):
    """Members look at a few points that have looked at all members: linear in the size of the set."""

    def __init__(self, width, points=2):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width))
        self.gather, self.spread = AttentionBlock(width), AttentionBlock(width)

    def forward(self, x, mask):
        points = self.gather(self.points.expand(len(x), -1, -1), x, mask)
        everywhere = torch.ones(points.shape[:2], dtype=torch.bool, device=x.device)
        return self.spread(x, points, everywhere)


class SetNetwork(nn.Module):
    """Members through blocks, then three summaries side by side: seeds, mean and maximum."""

    def __init__(self, width=8):
        super().__init__()
        self.inside = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList([InducedBlock(width), InducedBlock(width)])
        self.seed, self.pool = nn.Parameter(torch.randn(1, 1, width)), AttentionBlock(width)
        self.label, self.spread = nn.Linear(3 * width, 2), nn.Linear(3 * width, 1)

    def forward(self, members, mask):
        x = self.inside(members.masked_fill(~mask[..., None], 0))
        for block in self.blocks:
            x = block(x, mask)
        pooled = self.pool(self.seed.expand(len(x), -1, -1), x, mask).squeeze(1)
        real = mask[..., None]
        mean = x.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
        most = x.masked_fill(~real, -1e4).amax(1).clamp(min=-10)
        summary = torch.cat([pooled, mean, most], -1)
        return self.label(summary), self.spread(summary).squeeze(-1)


model = SetNetwork()
batch = collate(sets([6, 2, 4, 3]))
padding = {"members": "mask"}


def step(batch):
    """Both tasks, each the mean over sets."""
    label, spread = model(batch["members"], batch["mask"])
    return F.cross_entropy(label, batch["label"]) + F.mse_loss(F.softplus(spread), batch["spread"])


def train(steps=3):
    """A new draw of sets in each step, decoupled weight decay, averaged weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for seed in range(steps):
        optimizer.zero_grad()
        step(collate(sets([3, 5, 1], seed))).backward()
        optimizer.step()
        averaged.update_parameters(model)
    return averaged
