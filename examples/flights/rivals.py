"""What the network is compared with beside itself: the mean of training, and scikit-learn's boosted trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .data import Flights, Split
from .training import errors

__all__ = ["boosted_trees", "mean_delay"]


def mean_delay(parts: Split) -> Tensor:
    """The mean arrival delay of training, for every flight of the test."""
    mean: Tensor = parts.training.delays[:, 1].mean()
    return mean.expand(len(parts.test))


def boosted_trees(parts: Split, seed: int) -> Tensor | None:
    """``HistGradientBoostingRegressor`` on the same columns, which takes NaN as it is; None without scikit-learn.

    Trees stop by the validation month, as the networks do.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return None
    inputs = {name: _table(part) for name, part in vars(parts).items() if isinstance(part, Flights)}
    arrived = parts.training.delays.mask[:, 1].numpy()
    delays = parts.training.delays[:, 1].filled(0.0).numpy()
    # it cannot cut a column of which it knows fewer than two numbers
    known = [len(np.unique(column[~np.isnan(column)])) > 1 for column in inputs["training"][arrived].T]
    inputs = {name: table[:, known] for name, table in inputs.items()}
    trees = HistGradientBoostingRegressor(learning_rate=0.05, warm_start=True, random_state=seed)
    best, fewest = None, float("inf")
    for number in range(25, 301, 25):
        trees.set_params(max_iter=number).fit(inputs["training"][arrived], delays[arrived])
        found = errors(torch.from_numpy(trees.predict(inputs["validation"])).float(), parts.validation)
        if found.rmse < fewest:
            best, fewest = trees.predict(inputs["test"]), found.rmse
    return torch.from_numpy(best).float()


def _table(flights: Flights) -> Any:
    """Numbers and codes side by side, NaN where they are missing."""
    nan = float("nan")
    return torch.cat([flights.numbers.filled(nan), flights.codes.float().filled(nan)], dim=1).numpy()
