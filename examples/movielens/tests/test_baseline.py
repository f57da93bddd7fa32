from __future__ import annotations

import torch

from examples.movielens.baseline import MOVIE_DAMPING, USER_DAMPING, BiasBaseline
from examples.movielens.data import ratings_of_frame
from examples.movielens.scores import score
from examples.movielens.tests.small_ratings import small_frame


def test_biases_minimise_the_damped_squared_error() -> None:
    ratings = ratings_of_frame(small_frame())
    fitted = BiasBaseline.fit(ratings)
    user_bias = fitted.user_bias.double().requires_grad_()
    movie_bias = fitted.movie_bias.double().requires_grad_()
    predicted = BiasBaseline(fitted.mean, user_bias, movie_bias).predict(ratings.users, ratings.movies)
    error = (predicted - ratings.stars).square().sum()
    penalty = USER_DAMPING * user_bias.square().sum() + MOVIE_DAMPING * movie_bias.square().sum()
    for gradient in torch.autograd.grad(error + penalty, (user_bias, movie_bias)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-3)


def test_score() -> None:
    # 9 stars do not exist: they count as 5
    scores = score(torch.tensor([9.0, 1.0]), torch.tensor([4.0, 4.0]))
    assert scores.mae == 2.0
    assert scores.rmse == torch.tensor(5.0).sqrt().item()
