from __future__ import annotations

import torch

import maskgrad as mg
from examples.movielens.autoencoder import ItemAutoencoder, ItemAutoencoderLearner, forget
from examples.movielens.baseline import BiasBaseline
from examples.movielens.data import ratings_of_frame
from examples.movielens.scores import score
from examples.movielens.tests.small_ratings import MOVIES, USERS, small_frame


def test_equals_the_plain_network_on_rated_movies_and_is_unspecified_on_the_others() -> None:
    model = ItemAutoencoder(4, hidden=3)
    mask = torch.tensor([[True, False, True, True], [False] * 4])
    data = torch.where(mask, torch.randn(2, 4), torch.nan)
    output = model(mg.masked(data, mask))
    assert output.mask.tolist() == [[True] * 4, [False] * 4]
    torch.testing.assert_close(output[0].filled(torch.nan), model(data[0].nan_to_num(0.0)))


def test_forget_leaves_out_a_share_and_keeps_the_expected_sum() -> None:
    ratings = mg.masked(torch.ones(400, 100), torch.rand(400, 100) < 0.5)
    left = forget(ratings, 0.25)
    assert not (left.mask & ~ratings.mask).any()
    assert abs(float(left.num_specified() / ratings.num_specified()) - 0.75) < 0.02
    assert set(left.compressed().tolist()) == {torch.tensor(1 / 0.75).item()}


def test_nothing_of_what_is_forgotten_reaches_the_output() -> None:
    target = mg.masked(torch.ones(1, 4, requires_grad=True), torch.tensor([[True, True, True, False]]))
    shown = mg.masked(target.filled(0.0), torch.tensor([[True, False, False, False]]))
    ItemAutoencoder(4)(shown).sum().backward()
    gradient = target.grad.filled(0.0)[0]
    assert gradient[0] != 0
    assert gradient[1:].tolist() == [0.0, 0.0, 0.0]


def test_it_improves_on_the_baseline_and_falls_back_on_it() -> None:
    ratings = ratings_of_frame(small_frame())
    without_movie_5 = ratings[ratings.movies != 5]
    baseline = BiasBaseline.fit(without_movie_5)
    learner = ItemAutoencoderLearner(without_movie_5, baseline)
    for _ in range(60):
        learner.train_epoch()
    users, movies = without_movie_5.users, without_movie_5.movies
    biases_only = score(baseline.predict(users, movies), without_movie_5.stars)
    assert score(learner.predict(users, movies), without_movie_5.stars).rmse < 0.95 * biases_only.rmse
    everybody, unrated = torch.arange(USERS), torch.full((USERS,), 5)
    assert torch.equal(learner.predict(everybody, unrated), baseline.predict(everybody, unrated))
    assert learner.ratings_MU.shape == (MOVIES, USERS)
