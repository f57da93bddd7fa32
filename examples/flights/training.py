"""Epochs, and checkpoints to go on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

from .data import Flights, Split, without_weather
from .model import Delays
from .ranks import ALONE, Ranks

__all__ = ["SCALE", "Course", "Errors", "Inputs", "Treatment", "errors", "fit", "loss_of", "predict"]

BATCH, LEARNING_RATE = 2048, 2e-3
SCALE = 40.0  # minutes

#: what a network is given for numbers with holes
Treatment = Callable[[mg.MaskedTensor], Any]


@dataclass(frozen=True)
class Errors:
    """Of the arrival delays that are known, in minutes."""

    rmse: float
    mae: float


@dataclass
class Course:
    """RMSE in minutes after each epoch."""

    training: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Inputs:
    """Numbers of one part, treated: as they were told, and without the weather."""

    told: Any
    silent: Any

    @classmethod
    def of(cls, flights: Flights, treat: Treatment) -> Inputs:
        """Of this part: both at once, for all epochs."""
        return cls(treat(flights.numbers), treat(without_weather(flights.numbers)))

    def with_outages(self, share: float) -> Any:
        """A station that fails now and then: of ``share`` of the flights, chosen at random, no weather is known."""
        if share == 0:
            return self.told
        return torch.where(torch.rand(len(self.told), 1) < share, self.silent, self.told)


def errors(predicted: Tensor, flights: Flights) -> Errors:
    """How far off the arrivals (N,) in minutes are; flights that never arrived do not count."""
    difference = flights.delays[:, 1] - predicted
    return Errors(difference.square().mean().sqrt().item(), difference.abs().mean().item())


@torch.no_grad()
def predict(model: Delays, numbers: Any, flights: Flights) -> Tensor:
    """Arrival delays (N,) in minutes."""
    parts = torch.arange(len(flights)).split(8 * BATCH)
    return torch.cat([model(numbers[index], flights.codes[index])[:, 1] * SCALE for index in parts])


def loss_of(model: Delays, numbers: Any, flights: Flights, index: Tensor) -> Tensor:
    """Over the delays that are known: a flight that left and never arrived teaches its departure."""
    predicted = model(numbers[index], flights.codes[index])
    return F.mse_loss(predicted, flights.delays[index] / SCALE)


def fit(
    parts: Split,
    training: Inputs,
    validation: Any,
    *,
    epochs: int,
    seed: int,
    outages: float = 0.0,
    checkpoint: Path | None = None,
    ranks: Ranks = ALONE,
    after_epoch: Callable[[Course], None] = lambda _: None,
) -> tuple[Delays, Course]:
    """Train the network, and go on from ``checkpoint`` if it is there.

    Dense parameters and tables have one optimizer: rows that a batch does not read keep value and state. The
    validation month is looked at and chooses nothing: the last epoch counts, when the learning rate is nearly zero.
    """
    torch.manual_seed(seed)  # the same parameters and batches on all ranks
    flights = parts.training
    model = Delays(training.told.shape[1], parts.rows.values())
    optimizer = mg.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    steps = epochs * -(-len(flights) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    course = Course()
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["rng"])
        course = Course(**saved["course"])
    while len(course.validation) < epochs:
        numbers = training.with_outages(outages)
        losses = []
        for index in torch.randperm(len(flights)).split(BATCH):
            with ranks.losses():
                loss = loss_of(model, numbers, flights, ranks.part(index))
            optimizer.zero_grad()
            loss.backward()
            ranks.average_gradients(model)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        course.training.append(SCALE * torch.stack(losses).mean().sqrt().item())
        course.validation.append(errors(predict(model, validation, parts.validation), parts.validation).rmse)
        if checkpoint is not None and ranks.rank == 0:
            _save(
                checkpoint,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                schedule=schedule.state_dict(),
                rng=torch.get_rng_state(),
                course=vars(course),
            )
        after_epoch(course)
    return model, course


def _save(path: Path, **state: Any) -> None:
    """All at once, or not at all: Ctrl-C in the middle leaves the last epoch's file."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)
