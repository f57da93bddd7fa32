"""scikit-learn: arrays with NaN where it knows them; never an array without the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage


@one_line("scikit-learn", "estimators that accept NaN", "`estimator.fit(x.filled(float('nan')).numpy(), y)`")
@one_line("scikit-learn", "all others", "`SimpleImputer().fit_transform(x.filled(float('nan')).numpy())`")
def test_with_nan() -> None:
    x, values, mask = garbage(20, 3)
    array = x.filled(float("nan")).numpy()
    scaler = StandardScaler().fit(array)
    truth = [values[:, i][mask[:, i]].mean().item() for i in range(3)]
    np.testing.assert_allclose(scaler.mean_, truth, rtol=1e-5)
    np.testing.assert_allclose(x.mean(0).filled(0.0).numpy(), truth, rtol=1e-5)
    imputed = SimpleImputer().fit_transform(array)
    np.testing.assert_allclose(imputed, torch.where(mask, values, torch.tensor(truth)).numpy(), rtol=1e-5)
    y = values.sum(1).numpy()
    HistGradientBoostingRegressor(max_iter=2).fit(array, y).predict(array)
    LinearRegression().fit(imputed, y)


@refused("scikit-learn", "MaskedTensors in `fit`, metrics and scalers", "`x.filled(float('nan')).numpy()`")
def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(20, 3)
    calls: list[Any] = [
        lambda: LinearRegression().fit(x, np.ones(20)),
        lambda: StandardScaler().fit_transform(x),
        lambda: SimpleImputer().fit_transform(x),
        lambda: mean_squared_error(x, x),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"x\.filled\(float\('nan'\)\)\.numpy\(\)"):
            call()


@works("scikit-learn", "`train_test_split` of MaskedTensors")
def test_splitting() -> None:
    x, values, mask = garbage(20, 3)
    train, test = train_test_split(x, random_state=0)
    order = np.concatenate(train_test_split(np.arange(20), random_state=0))
    assert torch.equal(torch.cat([train.mask, test.mask]), mask[order])
    assert torch.equal(torch.cat([train, test]).filled(0.0), values[order])
