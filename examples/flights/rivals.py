"""What the masked network is compared with: the same network on filled numbers, boosted trees, and the mean."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg

from .data import NUMBERS, PLACES, Flights, Split, without_weather
from .training import Treatment

__all__ = ["boosted_trees", "filled_with_means", "iterative_imputer", "mean_delay", "with_indicators"]


def filled_with_means(numbers: mg.MaskedTensor) -> Tensor:
    """The usual way: standardised numbers have the mean 0."""
    return numbers.filled(0.0)


def with_indicators(numbers: mg.MaskedTensor) -> Tensor:
    """The careful way: a column beside each, which says what was missing."""
    return torch.cat([numbers.filled(0.0), (~numbers.mask).float()], dim=1)


def iterative_imputer(parts: Split) -> Treatment:
    """The thorough way: scikit-learn's ``IterativeImputer`` guesses each number from the others of the flight."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    imputer = IterativeImputer(random_state=0, keep_empty_features=True)
    with warnings.catch_warnings():
        # of `cruising_speed` too little is known for its guesses to settle in scikit-learn's 10 rounds
        warnings.simplefilter("ignore", ConvergenceWarning)
        imputer.fit(_with_nan(parts.training.numbers))

    def imputed(numbers: mg.MaskedTensor) -> Tensor:
        return torch.from_numpy(imputer.transform(_with_nan(numbers))).float()

    return imputed


def boosted_trees(parts: Split, seed: int, outages: float) -> tuple[Tensor, Tensor]:
    """``HistGradientBoostingRegressor``, which takes NaN as it is: arrivals (N,) of the test, told and without weather.

    Places of few values are categories; the 4,000 planes are too many for that and stay numbers.
    """
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingRegressor

    torch.manual_seed(seed)
    told, silent = _table(parts.training), _table(parts.training, silent=True)
    told = np.where((torch.rand(len(told), 1) < outages).numpy(), silent, told)
    delays = _with_nan(parts.training.delays[:, 1])
    arrived = ~np.isnan(delays)
    # it cannot cut a column of which it knows fewer than two numbers
    cuttable = [len(np.unique(column[~np.isnan(column)])) > 1 for column in told[arrived].T]
    kinds = [False] * len(NUMBERS) + [parts.rows[name] < 255 for name in PLACES]
    trees = HistGradientBoostingRegressor(
        categorical_features=np.array(kinds)[cuttable], early_stopping=False, random_state=seed
    )
    trees.fit(told[arrived][:, cuttable], delays[arrived])
    tests = (_table(parts.test)[:, cuttable], _table(parts.test, silent=True)[:, cuttable])
    first, second = (torch.from_numpy(trees.predict(table)).float() for table in tests)
    return first, second


def mean_delay(parts: Split) -> Tensor:
    """The mean arrival delay of training, for every flight of the test."""
    mean: Tensor = parts.training.delays[:, 1].mean()
    return mean.expand(len(parts.test))


def _with_nan(numbers: Any) -> Any:
    """As scikit-learn wants it."""
    return numbers.filled(float("nan")).numpy()


def _table(flights: Flights, *, silent: bool = False) -> Any:
    """Numbers and codes side by side, NaN where they are missing."""
    numbers = without_weather(flights.numbers) if silent else flights.numbers
    return torch.cat(
        [numbers.filled(float("nan")), flights.codes.float().filled(float("nan"))], dim=1
    ).numpy()
