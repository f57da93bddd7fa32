"""Modules with sparse, tied and dense parameters, and what one process makes of the joint batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 9


class Tables(nn.Module):
    """Sparse tables and dense layers; a table and a layer that are used when a flag says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.seldom = nn.EmbeddingBag(5, 4, sparse=True, mode="sum")
        self.hidden = nn.Linear(4, 3)
        self.extra = nn.Linear(3, 3)

    def forward(self, words: Tensor, seldom: bool = True) -> Tensor:
        x = self.table(words).sum(1)
        x = self.hidden(x + self.seldom(words % 5) if seldom else x)
        return (self.extra(x) if seldom else x).tanh().sum(1)


class Tied(nn.Module):
    """One weight looked up, sparse, and multiplied with, dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.scores = nn.Linear(4, WORDS, bias=False)
        self.scores.weight = self.table.weight
        self.bias = nn.Linear(1, 1)

    def forward(self, words: Tensor, multiply: bool = False) -> Tensor:
        x = self.table(words).sum(1)
        return (self.scores(x) if multiply else x).tanh().sum(1) + self.bias(torch.ones(1))


class OwnLookup(nn.Module):
    """A class that nobody knows, with a sparse gradient that nothing announces, and without dense parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(WORDS, 2))
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, words: Tensor) -> Tensor:
        return (F.embedding(words, self.rows, sparse=True).sum(1) * self.scale).tanh().sum(1)


class Sometimes(nn.Module):
    """All that is exchanged is used on some rank only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.table = nn.Linear(3, 2), nn.Embedding(WORDS, 2, sparse=True)

    def forward(self, words: Tensor, seldom: bool = False) -> Answer:
        x = self.hidden(words.float())
        return Answer((x + self.table(words[:, 0]) if seldom else x).tanh().sum(1))


@dataclasses.dataclass
class Answer:
    """What pytrees do not know."""

    scores: Any


def batches(step: int, rank: int, number: int = 4) -> Tensor:
    return torch.randint(0, WORDS, (number, 3), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(output: Any) -> Tensor:
    return ((output.scores if isinstance(output, Answer) else output) - 1).square().mean()


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return kind()


def state(module: nn.Module) -> Tensor:
    """All parameters, those of sharded layers as a whole."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return torch.cat([p.detach().float().flatten() for p in whole]).clone()


def trained(
    module: nn.Module, optimizers: Sequence[Any], loss: Callable[[int], Tensor], steps: int
) -> list[Tensor]:
    """Parameters after each step down the loss of that step."""
    found = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(step).backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(state(module))
    return found


def check(courses: list[list[Tensor]], expected: list[Tensor]) -> None:
    """All ranks have the same parameters, and they are those of one process."""
    for found in courses[1:]:
        for one, other in zip(found, courses[0], strict=True):
            assert torch.equal(one, other)  # bit for bit
    for one, wanted in zip(courses[0], expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)
