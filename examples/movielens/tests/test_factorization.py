from __future__ import annotations

import torch

import maskgrad as mg
from examples.movielens.data import ratings_of_frame
from examples.movielens.factorization import Factorization, FactorizationLearner
from examples.movielens.scores import score
from examples.movielens.tests.small_ratings import MOVIES, USERS, small_frame


def test_prediction_is_mean_plus_biases_plus_match() -> None:
    model = Factorization(2, 3, torch.tensor(3.0), factors=2)
    with torch.no_grad():
        model.user_factors.weight[1] = torch.tensor([1.0, 2.0])
        model.movie_factors.weight[2] = torch.tensor([0.5, 0.25])
        model.user_bias.weight[1] = 0.125
        model.movie_bias.weight[2] = -0.25
    assert model(torch.tensor([1]), torch.tensor([2])).tolist() == [3.0 + 0.125 - 0.25 + 1.0]


def test_all_four_tables_have_sparse_gradients() -> None:
    model = Factorization(USERS, MOVIES, torch.tensor(3.0), factors=4)
    model(torch.tensor([1, 1]), torch.tensor([2, 3])).sum().backward()
    assert [p.grad.is_sparse for p in model.parameters()] == [True] * 4


def test_it_is_trained_by_maskgrad_with_weight_decay_and_learns() -> None:
    ratings = ratings_of_frame(small_frame())
    learner = FactorizationLearner(ratings)
    assert isinstance(learner.optimizer, mg.optim.Adagrad)
    assert learner.optimizer.param_groups[0]["weight_decay"] > 0
    for _ in range(5):
        learner.train_epoch()
    mean_only = score(ratings.stars.mean().expand(len(ratings)), ratings.stars)
    assert score(learner.predict(ratings.users, ratings.movies), ratings.stars).rmse < 0.9 * mean_only.rmse
