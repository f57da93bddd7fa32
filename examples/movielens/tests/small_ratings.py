"""A small table of ratings that has something to be learnt."""

from __future__ import annotations

import numpy as np
import pandas as pd

USERS, MOVIES = 30, 50


def small_frame(seed: int = 0) -> pd.DataFrame:
    """About 600 ratings by 30 users of 50 movies; identifiers have gaps, and one movie has a single rating."""
    random = np.random.default_rng(seed)
    taste, kind = random.normal(size=(USERS, 2)), random.normal(size=(MOVIES, 2))
    stars = 3.3 + random.normal(scale=0.4, size=(USERS, 1)) + 0.5 * taste @ kind.T
    rated = random.random((USERS, MOVIES)) < 0.4
    rated[:, -1] = np.arange(USERS) == 3
    users, movies = rated.nonzero()
    return pd.DataFrame(
        {
            "userId": users * 3 + 1,
            "movieId": movies * 7 + 2,
            "rating": np.clip(np.round(stars[rated] * 2) / 2, 0.5, 5.0),
        }
    )
