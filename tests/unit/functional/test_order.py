"""Running sums, medians and quantiles of the specified entries of plain tensors."""

from __future__ import annotations

import torch

import maskgrad as mg
from tests.poison import gradient, inf, leaf, nan, on

MASK = on([1, 0, 1, 1], [0, 0, 0, 0])


def test_running_sums_and_products_skip_what_is_unspecified() -> None:
    data = leaf([2.0, nan, 3.0, 4.0], [inf, nan, -inf, nan])
    for name, expected, slope in (("cumsum", [2, 5, 9], [3, 2, 1]), ("cumprod", [2, 6, 24], [16, 10, 6])):
        result = getattr(mg.functional, name)(data, 1, mask=MASK)
        assert result[MASK].tolist() == expected
        grad = gradient(torch.where(MASK, result, 0), data)
        assert grad[MASK].tolist() == slope
        assert not grad[~MASK].any()


def test_the_median_is_that_of_the_specified_entries() -> None:
    data = leaf([2.0, nan, 3.0, 9.0], [inf, nan, -inf, nan])
    result = mg.functional.median(data, 1, mask=MASK)
    assert result[0].item() == 3.0
    assert gradient(result, data).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert mg.functional.median(data, 1, keepdim=True, mask=MASK).shape == (2, 1)


def test_quantiles_are_those_of_the_specified_entries() -> None:
    data = leaf([2.0, nan, 4.0, 8.0], [inf, nan, -inf, nan])
    assert mg.functional.quantile(data, 0.25, 1, mask=MASK)[0].item() == 3.0
    assert mg.functional.quantile(data, 0.25, 1, interpolation="lower", mask=MASK)[0].item() == 2.0
    several = mg.functional.quantile(data, torch.tensor([0.0, 1.0], dtype=torch.float64), 1, mask=MASK)
    assert several[:, 0].tolist() == [2.0, 8.0]
    assert not gradient(mg.functional.quantile(data, 0.25, 1, mask=MASK), data)[~MASK].any()
