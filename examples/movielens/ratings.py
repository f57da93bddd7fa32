"""Ratings as three parallel columns or as a masked matrix, and their division into three parts.

Shapes: N ratings, M movies, U users.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import maskgrad as mg

__all__ = ["Ratings", "Split", "split"]

#: one in ten of each user's ratings is held out
HELD_OUT_EVERY = 10
#: one in twenty of the others is not trained on but watched, to choose the epoch to keep
VALIDATION_EVERY = 20


@dataclass(frozen=True)
class Ratings:
    """Who gave which movie how many stars."""

    users: Tensor  # (N,) int64
    movies: Tensor  # (N,) int64
    stars: Tensor  # (N,) float32, 0.5 to 5
    num_users: int
    num_movies: int

    def __len__(self) -> int:
        return len(self.stars)

    def __getitem__(self, index: Tensor) -> Ratings:
        return Ratings(
            self.users[index], self.movies[index], self.stars[index], self.num_users, self.num_movies
        )

    def to(self, device: torch.device) -> Ratings:
        """The same ratings on another device."""
        return Ratings(
            self.users.to(device),
            self.movies.to(device),
            self.stars.to(device),
            self.num_users,
            self.num_movies,
        )

    def matrix(self, values: Tensor) -> mg.MaskedTensor:
        """``values`` (N,), one for each rating, as a matrix (M, U): specified where there is a rating."""
        data = values.new_zeros(self.num_movies, self.num_users)
        mask = torch.zeros_like(data, dtype=torch.bool)
        data[self.movies, self.users] = values
        mask[self.movies, self.users] = True
        return mg.masked(data, mask)

    @property
    def missing(self) -> float:
        """Share of the matrix for which there is no rating."""
        return 1 - len(self) / (self.num_users * self.num_movies)


@dataclass(frozen=True)
class Split:
    """Ratings to learn from, to choose with, and to report on; no rating is in two of them."""

    training: Ratings
    validation: Ratings
    held_out: Ratings

    def to(self, device: torch.device) -> Split:
        """The same split on another device."""
        return Split(self.training.to(device), self.validation.to(device), self.held_out.to(device))


def split(ratings: Ratings, seed: int) -> Split:
    """Hold out a tenth of each user's ratings (rounded up), and watch a twentieth of what is left.

    Ratings of every user are held out in the same proportion, so that users with few of them count as they do
    in training. The same seed gives the same split on every machine.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(ratings), generator=generator)
    order = shuffled[torch.argsort(ratings.users[shuffled], stable=True)]  # (N,) by user, shuffled within
    users = ratings.users[order]
    rank = torch.arange(len(users)) - torch.searchsorted(users, users)  # place among the user's ratings
    held_out = rank * HELD_OUT_EVERY < torch.bincount(users)[users]
    others = order[~held_out]
    others = others[torch.randperm(len(others), generator=generator)]
    watched = len(others) // VALIDATION_EVERY
    return Split(ratings[others[watched:]], ratings[others[:watched]], ratings[order[held_out]])
