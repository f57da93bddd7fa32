"""Epochs, the choice of the epoch to keep by validation, and checkpoints to go on from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

from .data import Flights, Split
from .model import Delays

__all__ = ["SCALE", "Errors", "History", "errors", "fit", "predict"]

BATCH, LEARNING_RATE = 2048, 2e-3
SCALE = 40.0  # minutes

Treatment = Callable[[mg.MaskedTensor], Any]


@dataclass(frozen=True)
class Errors:
    """Of the arrival delays that are known, in minutes."""

    rmse: float
    mae: float


@dataclass
class History:
    """RMSE in minutes after each epoch, and which one was kept (from 1)."""

    training: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0


def errors(predicted: Tensor, flights: Flights) -> Errors:
    """How far off the arrivals (N,) in minutes are; flights that never arrived do not count."""
    difference = flights.delays[:, 1] - predicted
    return Errors(difference.square().mean().sqrt().item(), difference.abs().mean().item())


@torch.no_grad()
def predict(model: Delays, treat: Treatment, flights: Flights) -> Tensor:
    """Arrival delays (N,) in minutes."""
    parts = [flights[index] for index in torch.arange(len(flights)).split(8 * BATCH)]
    return torch.cat([model(treat(part.numbers), part.codes)[:, 1] * SCALE for part in parts])


def fit(
    parts: Split,
    treat: Treatment,
    epochs: int,
    seed: int,
    checkpoint: Path | None = None,
    after_epoch: Callable[[History], None] = lambda _: None,
) -> tuple[Delays, History]:
    """Train the network on numbers treated by ``treat``; go on from ``checkpoint`` if it is there.

    Dense parameters and tables have one optimizer: rows that a batch does not read keep value and state.
    """
    torch.manual_seed(seed)
    columns = treat(parts.training[torch.arange(1)].numbers).shape[1]
    model = Delays(columns, parts.rows.values())
    optimizer = mg.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    history, best = History(), copy.deepcopy(model.state_dict())
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        history, best = History(**saved["history"]), saved["best"]
    while len(history.validation) < epochs:
        total, steps = 0.0, 0
        for index in torch.randperm(len(parts.training)).split(BATCH):
            batch = parts.training[index]
            predicted = model(treat(batch.numbers), batch.codes)
            # over the delays that are known: a flight that left and never arrived teaches its departure
            loss = F.mse_loss(predicted, batch.delays / SCALE)  # type: ignore[arg-type]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        found = errors(predict(model, treat, parts.validation), parts.validation)
        if found.rmse < min(history.validation, default=float("inf")):
            history.best_epoch, best = len(history.validation) + 1, copy.deepcopy(model.state_dict())
        history.training.append(SCALE * (total / steps) ** 0.5)
        history.validation.append(found.rmse)
        if checkpoint is not None:
            _save(checkpoint, model, optimizer, history, best)
        after_epoch(history)
    model.load_state_dict(best)
    return model, history


def _save(
    path: Path, model: Delays, optimizer: torch.optim.Optimizer, history: History, best: dict[str, Any]
) -> None:
    """All at once, or not at all: Ctrl-C in the middle leaves the last epoch's file."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "history": vars(history),
        "best": best,
    }
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)
