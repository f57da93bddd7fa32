"""Steps and training on rows of an embedding that occur several times: maskgrad beside torch, sparse and dense.

The peers of a case keep parameters of their own; these are compared after the first step of each, before any clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import measure
from maskgrad import optim

TABLE, WIDTH = 1_000_000, 64
ROWS = (65_536, 262_144)
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}
Contenders = dict[str, Callable[[], Any]]
Optimizer = Callable[..., torch.optim.Optimizer]


def run(progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Every case of this file, one row for each contender; ``progress`` is told what is being measured."""
    torch.manual_seed(0)
    cases: dict[str, tuple[Callable[[Tensor], Contenders], float | None]] = {
        "Adagrad step": (lambda ids: _step(ids, optim.Adagrad, torch.optim.Adagrad), 8),
        "SGD step": (lambda ids: _step(ids, optim.SGD, torch.optim.SGD), None),
        "embedding forward + backward + Adagrad step": (_training, 4),
    }
    found: list[dict[str, Any]] = []
    for rows in ROWS:
        for pattern, ids in _ids(rows).items():
            for case, (prepare, goal) in cases.items():
                progress(f"{case}, {rows} rows, {pattern}")
                name = f"{case}, {rows} rows of {WIDTH} float32 in {TABLE}, {pattern}"
                goals = {"torch": (">=", goal)} if goal else {}
                # a step returns nothing; _step and _training have compared the parameters
                found += measure("updates", name, prepare(ids), goals=goals, check=lambda *_: None, rounds=11)
    return found


def _ids(rows: int) -> dict[str, Tensor]:
    """Rows of the table, in no order: each twice on average, or often and seldom as words are."""
    half = rows // 2
    return {
        "twice": torch.randperm(TABLE)[:half][torch.randint(half, (rows,))],
        "power law": (TABLE ** torch.rand(rows)).long() - 1,
    }


def _gradient(ids: Tensor) -> Tensor:
    values = torch.randn(len(ids), WIDTH)
    return torch.sparse_coo_tensor(ids[None], values, (TABLE, WIDTH), check_invariants=False)


def _step(ids: Tensor, ours: Optimizer, theirs: Optimizer) -> Contenders:
    """The step alone, the gradient lies ready."""
    start, gradient = torch.randn(TABLE, WIDTH), _gradient(ids)
    parameters: list[nn.Parameter] = []
    contenders: Contenders = {}
    for name, kind in (("maskgrad", ours), ("torch", theirs), ("dense", theirs)):
        p = nn.Parameter(start.clone())
        p.grad = gradient.to_dense() if name == "dense" else gradient.clone()
        contenders[name] = kind([p], lr=0.1).step
        contenders[name]()
        parameters.append(p)
    for p in parameters[1:]:
        torch.testing.assert_close(parameters[0], p, **TOLERANCE)
    return contenders


def _training(ids: Tensor) -> Contenders:
    """Look up, go back with a gradient that lies ready, step."""
    weight, arriving = torch.randn(TABLE, WIDTH), torch.randn(len(ids), WIDTH)
    embeddings: list[nn.Embedding] = []

    def trainer(kind: Optimizer, is_sparse: bool) -> Callable[[], None]:
        embedding = nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=is_sparse)
        optimizer = kind(embedding.parameters(), lr=0.1)
        embeddings.append(embedding)

        def train() -> None:
            optimizer.zero_grad()
            embedding(ids).backward(arriving)
            optimizer.step()

        train()
        return train

    contenders = {
        "maskgrad": trainer(optim.Adagrad, True),
        "torch": trainer(torch.optim.Adagrad, True),
        "dense": trainer(torch.optim.Adagrad, False),
    }
    for embedding in embeddings[1:]:
        torch.testing.assert_close(embeddings[0].weight, embedding.weight, **TOLERANCE)
    return contenders
