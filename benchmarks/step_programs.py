"""Seventeen whole training steps on masked, padded, jagged and sparse data, small and large.

As a program it runs those whose name contains its first argument on the maskgrad that is imported, and prints a line
of JSON for each: ``python -m benchmarks.step_programs PART time``, or ``PART FOLDER`` for losses and gradients.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

__all__ = ["PROGRAMS", "Step", "chosen", "results", "seconds"]

#: Updates before the last loss, and before the clock starts.
STEPS = 5
CLASSES = 10


@dataclass(frozen=True)
class Step:
    """A model with its optimizer; ``loss`` is the forward pass on a fixed batch."""

    model: nn.Module
    loss: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def _step(model: nn.Module, loss: Callable[[], Tensor], optimizer: Any = mg.optim.Adam) -> Step:
    return Step(model, loss, optimizer(model.parameters(), lr=1e-3))


def _with_nan(*shape: int) -> Tensor:
    return torch.randn(shape).masked_fill(torch.rand(shape) < 0.3, torch.nan)


def _sequences(batch: int, time: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, time, width), torch.randint(max(1, int(0.3 * time)), time + 1, (batch,))


def mlp(batch: int, width: int, hidden: int = 128) -> Step:
    """Three layers on inputs and targets with missing entries."""
    inner = (nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    model = nn.Sequential(*inner, nn.Linear(hidden, width))
    x, y = _with_nan(batch, width), _with_nan(batch, width)
    return _step(model, lambda: F.mse_loss(model(mg.from_nan(x)), mg.from_nan(y)))


def autoencoder(batch: int, width: int, hidden: int = 128) -> Step:
    """Columns with missing entries standardised, zeros put in, and a loss at the known entries."""
    model = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
    x = _with_nan(batch, width)

    def loss() -> Tensor:
        t = mg.from_nan(x)
        t = (t - t.mean(0)) / (t.std(0) + 1e-6)
        return F.mse_loss(model(t.filled(0.0)), t)

    return _step(model, loss)


def encoder(batch: int, time: int, width: int, layers: int = 1, layout: torch.layout = torch.strided) -> Step:
    """Encoder layers of a Transformer, the mean over time, and a classification."""
    layer = nn.TransformerEncoderLayer(width, 8, 2 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, CLASSES)
    )
    x, lengths = _sequences(batch, time, width)
    labels = torch.randint(0, CLASSES, (batch,))

    def loss() -> Tensor:
        padded = mg.from_lengths(x, lengths, layout=layout)
        return F.cross_entropy(model[1](model[0](padded).mean(1)).filled(0.0), labels)

    return _step(model, loss)


def tagger(batch: int, time: int, width: int, words: int = 2000, tags: int = 20) -> Step:
    """Embedding, GRU, and a class for each word."""
    model = nn.ModuleList([
        nn.Embedding(words, width), nn.GRU(width, width, batch_first=True), nn.Linear(width, tags)
    ])  # fmt: skip
    lengths = _sequences(batch, time, 1)[1]
    ids, labels = torch.randint(0, words, (batch, time)), torch.randint(0, tags, (batch, time))

    def loss() -> Tensor:
        hidden, _ = model[1](model[0](mg.from_lengths(ids, lengths)))
        return F.cross_entropy(model[2](hidden).transpose(1, 2), mg.from_lengths(labels, lengths))

    return _step(model, loss)


def convolutions(batch: int, time: int, width: int) -> Step:
    """Two convolutions over time with batch norm between them, and the maximum over time."""
    first, second = (nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
    model = nn.Sequential(first, nn.BatchNorm1d(width), nn.ReLU(), second)
    x, lengths = _sequences(batch, time, width)
    return _step(model, lambda: model(mg.from_lengths(x, lengths).transpose(1, 2)).amax(2).square().mean())


def attention(batch: int, time: int, width: int) -> Step:
    """Attention written out: two products and a softmax, then layer norm."""
    model = nn.ModuleList([*(nn.Linear(width, width) for _ in range(4)), nn.LayerNorm(width)])
    (x, lengths), y = _sequences(batch, time, width), torch.randn(batch, time, width)

    def loss() -> Tensor:
        z = mg.from_lengths(x, lengths)
        query, key, value = (layer(z) for layer in model[:3])
        weights = (query @ key.transpose(1, 2) / width**0.5).softmax(-1)
        return F.mse_loss(model[3](model[4](weights @ value)), y)

    return _step(model, loss)


def poolings(batch: int, time: int, width: int) -> Step:
    """Mean, variance, maximum and logsumexp over time, joined."""
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(4 * width, 1))
    (x, lengths), y = _sequences(batch, time, width), torch.randn(batch, 1)

    def loss() -> Tensor:
        z = model[0](mg.from_lengths(x, lengths)).relu()
        pooled: Any = torch.cat([z.mean(1), z.var(1), z.amax(1), z.logsumexp(1)], 1)
        return F.mse_loss(model[1](pooled.filled(0.0)), y)

    return _step(model, loss)


def recommender(rows: int, batch: int, width: int, optimizer: Any) -> Step:
    """Two tables with sparse gradients, and a linear layer."""
    tables = [nn.Embedding(rows, width, sparse=True) for _ in range(2)]
    model = nn.ModuleList([*tables, nn.Linear(2 * width, 1)])
    users, items = torch.randint(0, rows, (2, batch))
    ratings = torch.randn(batch, 1)
    return _step(
        model,
        lambda: F.mse_loss(model[2](torch.cat([model[0](users), model[1](items)], 1)), ratings),
        optimizer,
    )


#: Names that begin with "rows" are steps on sparse rows.
PROGRAMS: dict[str, Callable[[], Step]] = {
    "MLP 64x200": partial(mlp, 64, 200),
    "MLP 256x256": partial(mlp, 256, 256),
    "standardised autoencoder 64x200": partial(autoencoder, 64, 200),
    "standardised autoencoder 256x256": partial(autoencoder, 256, 256),
    "two encoder layers 64x200x8": partial(encoder, 64, 200, 8, layers=2),
    "encoder 16x128x256": partial(encoder, 16, 128, 256),
    "encoder, jagged 16x128x256": partial(encoder, 16, 128, 256, layout=torch.jagged),
    "tagger 64x200x8": partial(tagger, 64, 200, 8),
    "tagger 16x128x128": partial(tagger, 16, 128, 128),
    "convolutions 16x128x64": partial(convolutions, 16, 128, 64),
    "attention 64x200x8": partial(attention, 64, 200, 8),
    "attention 16x128x256": partial(attention, 16, 128, 256),
    "four poolings 64x200x8": partial(poolings, 64, 200, 8),
    "four poolings 16x128x256": partial(poolings, 16, 128, 256),
    "rows: Adam, 4096 of 100000x32": partial(recommender, 100_000, 4096, 32, mg.optim.Adam),
    "rows: Adam, 1024 of 1000000x64": partial(recommender, 1_000_000, 1024, 64, mg.optim.Adam),
    "rows: Adagrad, 4096 of 100000x32": partial(recommender, 100_000, 4096, 32, mg.optim.Adagrad),
}


def chosen(part: str) -> list[str]:
    """The names that contain ``part``."""
    return [name for name in PROGRAMS if part in name]


def _made(name: str) -> Step:
    torch.manual_seed(0)
    return PROGRAMS[name]()


def results(name: str) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of the first step and of the one after :data:`STEPS` updates, and the gradients of the first."""
    step = _made(name)
    first = float(step().detach())
    gradients = {
        key: p.grad.to_dense().clone() for key, p in step.model.named_parameters() if p.grad is not None
    }
    later = [float(step().detach()) for _ in range(STEPS)][-1]
    return [first, later], gradients


def seconds(name: str, least: float = 0.5) -> float:
    """The median of a step, in seconds of processor time, which other programs disturb less than elapsed time."""
    step = _made(name)
    for _ in range(STEPS + 1):
        step()
    times: list[float] = []
    while sum(times) < least or len(times) < 3:
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main(part: str, way: str) -> None:
    torch.set_num_threads(1)
    for number, name in enumerate(chosen(part)):
        line: dict[str, Any] = {"name": name, "maskgrad": mg.__file__}
        if way == "time":
            line["seconds"] = seconds(name)
        else:
            losses, gradients = results(name)
            file = Path(way) / f"{number}.pt"
            torch.save(gradients, file)
            line |= {"losses": losses, "gradients": str(file)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
