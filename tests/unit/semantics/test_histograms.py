"""Histograms: torch's on what is left; unspecified entries are neither counted nor part of the range."""

from __future__ import annotations

import itertools

import pytest
import torch

import maskgrad as mg
from tests.laws.any_type.comparison import parts_of
from tests.poison import assert_entries, inf, nan, on, poisoned
from tests.unit.semantics.deletion import FLOATS, data


def assert_same(found: object, expected: object) -> None:
    for part, values in zip(parts_of(found), parts_of(expected), strict=True):
        assert isinstance(part, mg.MaskedTensor)
        assert part.mask.all()
        assert part.dtype == values.dtype
        torch.testing.assert_close(part.filled(0), values, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_counts_by_deletion(dtype: torch.dtype) -> None:
    for case in data(dtype, kinds="ordinary ties"):
        left = case.x[case.mask]
        for bins, (low, high) in itertools.product((1, 4, 5), ((0, 0), (-1, 2), (3, 3))):
            assert_same(torch.histc(case.masked, bins, low, high), torch.histc(left, bins, low, high))


def test_specified_nan_is_treated_as_in_torch() -> None:
    x = poisoned([1.0, None, nan, 2.0])
    assert_entries(x.histc(2, min=0, max=4), [1.0, 1.0])
    with pytest.raises(RuntimeError, match="not finite"):
        x.histc(2)
    with pytest.raises(RuntimeError, match="not finite"):
        poisoned([1.0, None, inf]).histogram(2)


def test_many_unspecified_entries() -> None:
    x = torch.full((4096,), nan, dtype=torch.bfloat16)
    x[:3] = torch.tensor([0.0, 1.0, 1.0])
    assert_entries(mg.masked(x, torch.arange(4096) < 3).histc(2), [1.0, 2.0], dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("density", [False, True])
def test_weights_by_deletion(dtype: torch.dtype, density: bool) -> None:
    for case in data(dtype, kinds="ordinary ties"):
        weight = torch.rand(case.x.shape, dtype=dtype)
        known = torch.rand(case.x.shape) < 0.8
        both = case.mask & known
        masked_weight = mg.masked(torch.where(known, weight, nan), known)
        for bins in (3, torch.tensor([-1.0, 0.0, 0.5, 3.0], dtype=dtype)):
            assert_same(
                torch.histogram(case.masked, bins, weight=masked_weight, density=density),
                torch.histogram(case.x[both], bins, weight=weight[both], density=density),
            )
            assert_same(
                case.masked.histogram(bins, density=density),
                torch.histogram(case.x[case.mask], bins, density=density),
            )
        options = {"range": (-1.0, 1.0), "density": density}
        assert_same(
            torch.histogram(case.masked, 3, **options), torch.histogram(case.x[case.mask], 3, **options)
        )


@pytest.mark.parametrize("density", [False, True])
def test_points_count_if_all_their_coordinates_are_specified(density: bool) -> None:
    for case in data(torch.float32, (3, 5, 2), kinds="ordinary"):
        whole = case.mask.all(-1)
        weight = torch.rand(3, 5)
        found = torch.histogramdd(case.masked, [2, 3], weight=weight, density=density)
        assert type(found) is torch.return_types.histogramdd
        expected = torch.histogramdd(case.x[whole], [2, 3], weight=weight[whole], density=density)
        assert_same(found, expected)
        assert_same(
            torch.histogramdd(case.masked, 2, range=[0.0, 1.0, -1.0, 1.0]),
            torch.histogramdd(case.x[whole], 2, range=[0.0, 1.0, -1.0, 1.0]),
        )


def test_how_often_numbers_occur() -> None:
    x = poisoned([1, None, 3, 1, None], torch.int64)
    assert_entries(x.bincount(), [0, 2, 0, 1], dtype=torch.int64)
    assert_entries(torch.bincount(x, minlength=6), [0, 2, 0, 1, 0, 0])
    assert_entries(torch.bincount(x, poisoned([0.5, 1.0, None, 1.0, None])), [0.0, 1.5])
    assert_entries(torch.bincount(torch.tensor([0, 1]), weights=poisoned([None, 2.0])), [0.0, 2.0])
    assert_entries(poisoned([None, None], torch.int64).bincount(), [])


def test_refusals() -> None:
    x = poisoned([1.0, None, 2.0])
    for call in (
        lambda: x.histogram(poisoned([0.0, None, 3.0])),
        lambda: torch.histogramdd(x[:, None], [poisoned([0.0, None, 3.0])]),
    ):
        with pytest.raises(mg.UndefinedOnMaskedError, match="edge"):
            call()
    for call in (
        lambda: x.histogram(2, weight=torch.ones(2)),
        lambda: x.histogram(2, weight=torch.ones(3)),
        lambda: torch.histogramdd(x, 2),
        lambda: poisoned([1, None], torch.int64).histogram(2),
        lambda: poisoned([1, None], torch.int64).histc(2),
        lambda: poisoned([[1, None]], torch.int64).bincount(),
        lambda: poisoned([1, None], torch.int64).bincount(torch.ones(3)),
        lambda: poisoned([-1, None], torch.int64).bincount(),
        lambda: x.histc(0),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            call()


def test_counts_of_one_number_and_of_nothing() -> None:
    assert_entries(poisoned([None, 2.0, 2.0, None]).histc(5), [0.0, 0.0, 2.0, 0.0, 0.0])
    assert_entries(poisoned([None, None]).histc(2), [0.0, 0.0])
    assert_entries(mg.masked(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).histc(2), [0.0, 0.0])
    hist, edges = poisoned([None, None]).histogram(2)
    assert_entries(hist, [0.0, 0.0])
    assert_entries(edges, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("limits", [(0, 0), (0, 4)])
def test_compiled_in_one_graph(limits: tuple[int, int]) -> None:
    def function(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mg.masked(values, mask).histc(3, *limits).filled(0.0)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (on(1, 1, 0, 1), on(0, 1, 0, 0)):
        values = torch.where(mask, torch.arange(4.0), nan)
        assert torch.equal(compiled(values, mask), function(values, mask))
