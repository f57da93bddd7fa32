from __future__ import annotations

import torch

from examples.movielens.data import ratings_of_frame
from examples.movielens.ratings import Ratings, split
from examples.movielens.tests.small_ratings import MOVIES, USERS, small_frame


def _pairs(ratings: Ratings) -> set[tuple[int, int]]:
    return set(zip(ratings.users.tolist(), ratings.movies.tolist(), strict=True))


def test_the_parts_are_disjoint_and_complete() -> None:
    ratings = ratings_of_frame(small_frame())
    parts = split(ratings, seed=0)
    pairs = [_pairs(part) for part in (parts.training, parts.validation, parts.held_out)]
    assert sum(len(p) for p in pairs) == len(ratings)
    assert set.union(*pairs) == _pairs(ratings)
    assert all(pairs)


def test_stars_stay_with_their_user_and_movie() -> None:
    ratings = ratings_of_frame(small_frame())
    dense = torch.zeros(USERS, MOVIES)
    dense[ratings.users, ratings.movies] = ratings.stars
    parts = split(ratings, seed=1)
    for part in (parts.training, parts.validation, parts.held_out):
        assert torch.equal(dense[part.users, part.movies], part.stars)


def test_a_tenth_of_each_users_ratings_is_held_out() -> None:
    ratings = ratings_of_frame(small_frame())
    held_out = torch.bincount(split(ratings, seed=0).held_out.users, minlength=USERS)
    assert torch.equal(held_out, torch.ceil(torch.bincount(ratings.users) / 10).long())


def test_the_seed_decides_the_split() -> None:
    ratings = ratings_of_frame(small_frame())
    torch.manual_seed(5)
    first = split(ratings, seed=3)
    torch.manual_seed(6)  # the global generator has no say
    again, other = split(ratings, seed=3), split(ratings, seed=4)
    for part in ("training", "validation", "held_out"):
        assert torch.equal(getattr(first, part).users, getattr(again, part).users)
        assert torch.equal(getattr(first, part).movies, getattr(again, part).movies)
    assert _pairs(first.held_out) != _pairs(other.held_out)


def test_the_matrix_is_specified_where_there_is_a_rating() -> None:
    ratings = Ratings(torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([4.0, 0.0]), 2, 3)
    assert ratings.matrix(ratings.stars).tolist() == [[None, 0.0], [None, None], [4.0, None]]
