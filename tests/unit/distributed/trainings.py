"""Modules with sparse, tied, masked and dense parameters, and what one process makes of the joint batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

WORDS = 9


class Tables(nn.Module):
    """Sparse tables and dense layers; a table and a layer that are used when a flag says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.seldom = nn.EmbeddingBag(5, 4, sparse=True, mode="sum")
        self.hidden = nn.Linear(4, 3)
        self.extra = nn.Linear(3, 3)

    def forward(self, words: Tensor, seldom: bool = False) -> Tensor:
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
    """A class that nobody knows, with a sparse gradient that nothing announces."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(WORDS, 2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, words: Tensor) -> Tensor:
        return (F.embedding(words, self.rows, sparse=True).sum(1) * self.scale).tanh().sum(1)


class OnlyTables(nn.Module):
    """No dense parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mg.nn.Embedding(WORDS, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words).sum(1).tanh().sum(1)


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

    scores: Tensor


class Masked(nn.Module):
    """Answers with a MaskedTensor in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.hidden = nn.Linear(4, 3)
        self.idle = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> dict[str, Any]:
        x = mg.masked(self.table(words), (words != 0).unsqueeze(-1))
        return {"out": self.hidden(x.filled(0)).sum(1), "masked": x, "count": 3}


class OwnAndDense(nn.Module):
    """All parameters are used every time, tables and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = OwnLookup(), nn.Linear(1, 1)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.own(words).unsqueeze(1)).squeeze(1)


def batches(step: int, rank: int, number: int = 4) -> Tensor:
    return torch.randint(0, WORDS, (number, 3), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(output: Any) -> Tensor:
    if isinstance(output, dict):
        return output["out"].square().mean() + output["masked"].sum() / 12
    if isinstance(output, Answer):
        output = output.scores
    return (output - 1).square().mean()


def made(kind: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(5)
    return kind().to(dtype)


def state(module: nn.Module) -> Tensor:
    """All parameters, those of sharded layers as a whole."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return torch.cat([p.detach().float().flatten() for p in whole]).clone()


def trained(
    module: nn.Module,
    optimizers: Sequence[Any],
    loss: Callable[[int], Tensor],
    steps: int,
    exchange: Callable[[], Any] | None = None,
) -> list[Tensor]:
    """Parameters after each step down the loss of that step."""
    found = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(step).backward()
        if exchange is not None:
            exchange()
        for optimizer in optimizers:
            optimizer.step()
        found.append(state(module))
    return found


Flags = Callable[[int, int], dict[str, Any]]


def no_flags(step: int, rank: int) -> dict[str, Any]:
    return {}


def seldom_on_rank_1(step: int, rank: int) -> dict[str, Any]:
    return {"seldom": rank == 1 and step % 2 == 0}


def never_seldom(step: int, rank: int) -> dict[str, Any]:
    return {"seldom": True}


def multiply_on_rank_0(step: int, rank: int) -> dict[str, Any]:
    return {"multiply": rank == 0 and step > 0}


def course(
    module: nn.Module, model: Any, ranks: list[int], optimizer: str, flags: Flags, steps: int = 4
) -> list[Tensor]:
    """A training on the batches of ``ranks`` together."""

    def loss(step: int) -> Tensor:
        return torch.stack(
            [loss_of(model(batches(step, rank), **flags(step, rank))) for rank in ranks]
        ).mean()

    return trained(module, [getattr(mg.optim, optimizer)(module.parameters(), lr=0.1)], loss, steps)


SCENARIOS: dict[str, tuple[Callable[[], nn.Module], Flags, dict[str, Any]]] = {
    "tables": (Tables, never_seldom, {}),
    "views of buckets": (Tables, never_seldom, {"gradient_as_bucket_view": True}),
    "unused on a rank": (Tables, seldom_on_rank_1, {"find_unused_parameters": True}),
    "static graph": (Tables, never_seldom, {"static_graph": True}),
    "tied": (Tied, multiply_on_rank_0, {}),
    "unknown class": (OwnLookup, no_flags, {}),
    "only tables": (OnlyTables, no_flags, {}),
    "only on a rank": (Sometimes, seldom_on_rank_1, {}),
    "masked": (Masked, no_flags, {"find_unused_parameters": True}),
    "named": (Tables, never_seldom, {"sparse": ["hidden", "extra.weight"]}),
}


def check(
    courses: list[list[Tensor]], expected: list[Tensor], rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """All ranks have the same parameters, and they are those of one process."""
    for found in courses[1:]:
        for one, other in zip(found, courses[0], strict=True):
            assert torch.equal(one, other)  # bit for bit
    for one, wanted in zip(courses[0], expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=rtol, atol=atol)
