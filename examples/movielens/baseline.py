"""What can be said without a model: some users are generous, some movies are good.

Shapes: N ratings, M movies, U users.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .ratings import Ratings

__all__ = ["BiasBaseline"]

#: so many imaginary ratings without any bias are added to each user's and each movie's own (chosen on validation)
USER_DAMPING, MOVIE_DAMPING = 4.0, 3.0
SWEEPS = 15


@dataclass(frozen=True)
class BiasBaseline:
    r"""Predicts :math:`\mu + b_u + b_m`: the mean of all ratings, a bias for the user, one for the movie.

    The biases minimise the squared error plus ``damping`` times the square of each; users' and movies' are
    solved for in turns.
    """

    mean: Tensor  # ()
    user_bias: Tensor  # (U,)
    movie_bias: Tensor  # (M,)

    @classmethod
    def fit(cls, ratings: Ratings) -> BiasBaseline:
        """Learn the biases from ``ratings``."""
        mean = ratings.stars.mean()
        user_bias, movie_bias = mean.new_zeros(ratings.num_users), mean.new_zeros(ratings.num_movies)
        for _ in range(SWEEPS):
            above_user = ratings.stars - mean - user_bias[ratings.users]
            movie_bias = _damped_means(above_user, ratings.movies, ratings.num_movies, MOVIE_DAMPING)
            above_movie = ratings.stars - mean - movie_bias[ratings.movies]
            user_bias = _damped_means(above_movie, ratings.users, ratings.num_users, USER_DAMPING)
        return cls(mean, user_bias, movie_bias)

    def predict(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (N,) pairs of user and movie."""
        return self.mean + self.user_bias[users] + self.movie_bias[movies]


def _damped_means(values: Tensor, groups: Tensor, num_groups: int, damping: float) -> Tensor:
    """Mean of the values of each group, drawn towards 0 as if ``damping`` zeros were among them."""
    sums = values.new_zeros(num_groups).index_add(0, groups, values)
    return sums / (torch.bincount(groups, minlength=num_groups) + damping)
