"""Epochs, learning curves, and the choice of the epoch to keep."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from .ratings import Split
from .scores import Scores, score

__all__ = ["History", "Learner", "fit"]


class Learner(Protocol):
    """A model that can be trained for an epoch and asked for predictions."""

    @property
    def module(self) -> nn.Module:
        """What holds the parameters."""

    def train_epoch(self) -> None:
        """See the training ratings once."""

    def predict(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (N,) pairs of user and movie."""


@dataclass
class History:
    """RMSE in stars after each epoch, on each part of the ratings; and what was kept."""

    training: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    #: the epoch with the best validation RMSE, counted from 1; 0 before any is done
    best_epoch: int = 0
    #: how the parameters of that epoch do on the held-out ratings
    kept: Scores | None = None

    def best_validation(self) -> float:
        """Validation RMSE of the epoch that is kept; infinite before any is done."""
        return min(self.validation, default=float("inf"))


def fit(
    learner: Learner, split: Split, epochs: int, history: History, after_epoch: Callable[[], None]
) -> None:
    """Train for ``epochs`` epochs, then go back to the parameters of the best one.

    Best is decided on the validation ratings. The held-out ratings are scored after each epoch for the
    picture, and decide nothing. ``history`` is filled as it happens, so that it is of use after an interruption.
    """
    best = copy.deepcopy(learner.module.state_dict())
    for epoch in range(1, epochs + 1):
        learner.train_epoch()
        training, validation, held_out = _scores(learner, split)
        if validation.rmse < history.best_validation():
            best = copy.deepcopy(learner.module.state_dict())
            history.best_epoch, history.kept = epoch, held_out
        history.training.append(training.rmse)
        history.validation.append(validation.rmse)
        history.held_out.append(held_out.rmse)
        after_epoch()
    learner.module.load_state_dict(best)


def _scores(learner: Learner, split: Split) -> list[Scores]:
    """Of training, validation and held-out ratings, from one pass of the model."""
    parts = (split.training, split.validation, split.held_out)
    users, movies = torch.cat([p.users for p in parts]), torch.cat([p.movies for p in parts])
    predicted = learner.predict(users, movies).split([len(p) for p in parts])
    return [score(guess, part.stars) for guess, part in zip(predicted, parts, strict=True)]
