"""Matrix factorization: four embedding tables whose gradients touch only the rows of the batch.

This file is an example of :class:`maskgrad.optim.Adagrad`: sparse gradients with weight decay, which
``torch.optim.Adagrad`` refuses. Shapes: B ratings in a batch, F factors, M movies, U users.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

from .processes import ALONE, Share
from .ratings import Ratings

__all__ = ["Factorization", "FactorizationLearner"]

FACTORS = 100
BATCH_SIZE = 1000
LEARNING_RATE = 0.1
LEARNING_RATE_DECAY = 0.9  # each epoch
#: in proportion to the summed loss of a batch; a row is decayed when, and only when, a rating of the batch reads it
WEIGHT_DECAY = 0.5


class Factorization(nn.Module):
    r"""Predicts :math:`\mu + b_u + b_m + p_u \cdot q_m`, where p and q have F entries each."""

    def __init__(self, num_users: int, num_movies: int, mean: Tensor, factors: int = FACTORS) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(num_users, factors, sparse=True)
        self.movie_factors = nn.Embedding(num_movies, factors, sparse=True)
        self.user_bias = nn.Embedding(num_users, 1, sparse=True)
        self.movie_bias = nn.Embedding(num_movies, 1, sparse=True)
        self.register_buffer("mean", mean.clone())
        for table in (self.user_factors, self.movie_factors):
            nn.init.normal_(table.weight, std=0.05)
        for table in (self.user_bias, self.movie_bias):
            nn.init.zeros_(table.weight)

    def forward(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (B,) pairs of user and movie."""
        match = (self.user_factors(users) * self.movie_factors(movies)).sum(dim=1)
        biases = self.user_bias(users) + self.movie_bias(movies)
        stars: Tensor = self.get_buffer("mean") + biases.squeeze(1) + match
        return stars


class FactorizationLearner:
    """A :class:`Factorization` and what trains it."""

    def __init__(self, training: Ratings, share: Share = ALONE) -> None:
        self.training, self.share = training, share
        self.module = Factorization(training.num_users, training.num_movies, training.stars.mean().cpu())
        self.module.to(training.stars.device)
        self.optimizer = mg.optim.Adagrad(
            self.module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, LEARNING_RATE_DECAY)

    def train_epoch(self) -> None:
        """See every training rating once, in random order."""
        order = torch.randperm(len(self.training)).to(self.training.stars.device)
        for index in order.split(BATCH_SIZE):
            batch = self.training[index[self.share.part(len(index))]]
            predicted = self.module(batch.users, batch.movies)
            with self.share.losses():
                loss = F.mse_loss(predicted, batch.stars, reduction="sum")
            self.optimizer.zero_grad()
            loss.backward()
            self.share.average_gradients(self.module)
            self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def predict(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (N,) pairs of user and movie."""
        predicted: Tensor = self.module(users, movies)
        return predicted
