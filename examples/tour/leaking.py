"""A script as people write it: it trains, its loss falls, and padding is in its mean."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
embed, head = nn.Embedding(50, 16), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()], lr=1e-2)


def batch_of(size: int = 8) -> dict[str, torch.Tensor]:
    words = [torch.randint(1, 50, (int(n),)) for n in torch.randint(1, 12, (size,))]
    ids = pad_sequence(words, batch_first=True)
    label = torch.stack([(word > 25).float().mean() > 0.5 for word in words]).long()
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "label": label}


def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = embed(batch["input_ids"])
    pooled = hidden.mean(1)
    return F.cross_entropy(head(pooled), batch["label"])


def train(steps: int = 100) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = step(batch_of())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
