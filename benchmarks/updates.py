"""Steps, coalescing and training on rows of an embedding that occur several times: maskgrad against torch.

Each case checks its results against torch first and raises if they differ. All contenders of a case are timed in
turns, so that a busy machine slows all of them alike; ``speedup`` is the ratio of the medians. Run it with

    python -m benchmarks.updates
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad import optim, sparse

TABLE, WIDTH = 1_000_000, 64
ROWS = (65_536, 262_144)
ROUNDS, WARM_UP = 11, 2
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}
Contenders = dict[str, Callable[[], Any]]
Optimizer = Callable[..., torch.optim.Optimizer]


def run(progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Every case of this file, one row for each contender; ``progress`` is told what is being measured."""
    cases: dict[str, Callable[[Tensor], Contenders]] = {
        "Adagrad step": lambda ids: _step(ids, optim.Adagrad, torch.optim.Adagrad),
        "SGD step": lambda ids: _step(ids, optim.SGD, torch.optim.SGD),
        "coalesce": _coalesce,
        "embedding forward + backward + Adagrad step": _training,
    }
    found: list[dict[str, Any]] = []
    for rows in ROWS:
        for pattern, ids in _ids(rows).items():
            for case, prepare in cases.items():
                progress(f"{case}, {rows} rows, {pattern}")
                found += _measure(prepare(ids), {"case": case, "rows": rows, "pattern": pattern})
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


def _coalesce(ids: Tensor) -> Contenders:
    gradient = _gradient(ids)
    ours, theirs = sparse.coalesce(gradient), gradient.coalesce()
    torch.testing.assert_close(ours.indices(), theirs.indices(), rtol=0, atol=0)
    torch.testing.assert_close(ours.values(), theirs.values(), **TOLERANCE)
    zeros, values = torch.zeros(TABLE, WIDTH), gradient._values()
    return {
        "maskgrad": lambda: sparse.coalesce(gradient),
        "torch": gradient.coalesce,
        "dense": lambda: zeros.index_add(0, ids, values),
    }


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


def _measure(contenders: Contenders, what: dict[str, Any]) -> list[dict[str, Any]]:
    """Times of all contenders, in turns; ``speedup``: how many times as long as maskgrad each one takes."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(WARM_UP + ROUNDS):
        for name, call in contenders.items():
            before = time.perf_counter()
            call()
            if turn >= WARM_UP:
                times[name].append((time.perf_counter() - before) * 1e3)
    ours = statistics.median(times["maskgrad"])
    provenance = {
        "shape": [TABLE, WIDTH],
        "density": what["rows"] / TABLE,
        "dtype": "float32",
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return [
        {
            "file": "updates",
            **what,
            "contender": name,
            **provenance,
            "p20_ms": statistics.quantiles(taken, n=5)[0],
            "p50_ms": statistics.median(taken),
            "p80_ms": statistics.quantiles(taken, n=5)[3],
            "speedup": statistics.median(taken) / ours,
        }
        for name, taken in times.items()
    ]


if __name__ == "__main__":
    for row in run(progress=lambda _: None):
        print(json.dumps(row))
