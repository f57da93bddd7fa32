from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from examples.movielens.ratings import Ratings, Split
from examples.movielens.training import History, fit


class Scripted:
    """Predicts the same stars for everything: the next of a list with each epoch."""

    def __init__(self, script: list[float], interrupt_at: int | None = None) -> None:
        self.module = nn.Module()
        self.module.register_buffer("stars", torch.tensor(0.0))
        self.script, self.interrupt_at, self.epoch = script, interrupt_at, 0

    def train_epoch(self) -> None:
        self.epoch += 1
        if self.epoch == self.interrupt_at:
            raise KeyboardInterrupt
        self.module.stars.fill_(self.script[self.epoch - 1])

    def predict(self, users: Tensor, movies: Tensor) -> Tensor:
        return self.module.stars.expand(len(users))


def _constant(stars: float) -> Ratings:
    return Ratings(torch.tensor([0]), torch.tensor([0]), torch.tensor([stars]), 1, 1)


def test_the_validation_ratings_choose_the_epoch_and_the_held_out_ones_do_not() -> None:
    split = Split(training=_constant(1.0), validation=_constant(3.0), held_out=_constant(4.0))
    learner, history = Scripted([2.0, 3.5, 4.0]), History()
    epochs = []
    fit(learner, split, 3, history, lambda: epochs.append(len(history.training)))
    assert history.training == [1.0, 2.5, 3.0]
    assert history.validation == [1.0, 0.5, 1.0]
    assert history.held_out == [2.0, 0.5, 0.0]  # the third epoch would have been the best here
    assert history.best_epoch == 2
    assert history.kept.rmse == 0.5
    assert learner.module.stars.item() == 3.5
    assert epochs == [1, 2, 3]


def test_an_interruption_leaves_what_was_learnt_of_the_model() -> None:
    split = Split(*[_constant(3.0)] * 3)
    history = History()
    with pytest.raises(KeyboardInterrupt):
        fit(Scripted([2.0, 3.0], interrupt_at=2), split, 5, history, lambda: None)
    assert history.validation == [1.0]
    assert history.best_epoch == 1
