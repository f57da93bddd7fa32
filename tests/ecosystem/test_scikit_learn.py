"""scikit-learn: arrays with NaN where it knows them; never an array without the mask."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from tests.ecosystem.truth import assert_refused, garbage


def test_splitting() -> None:
    x, _, _ = garbage(20, 3)
    split = torch.cat(train_test_split(x, random_state=0))
    order = np.concatenate(train_test_split(np.arange(20), random_state=0))
    assert split.tolist() == x[order].tolist()


def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(20, 3)
    array = x.filled(float("nan")).numpy()
    np.testing.assert_allclose(StandardScaler().fit(array).mean_, x.mean(0).filled(), rtol=1e-5)
    assert_refused(
        r"x\.filled\(float\('nan'\)\)\.numpy\(\)",
        lambda: LinearRegression().fit(x, np.ones(20)),
        lambda: StandardScaler().fit_transform(x),
        lambda: SimpleImputer().fit_transform(x),
        lambda: mean_squared_error(x, x),
    )
