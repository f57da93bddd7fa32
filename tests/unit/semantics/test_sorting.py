"""Sorting, distinct entries, membership, search: torch's on what is left; unspecified entries last."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck

import maskgrad as mg
from tests.laws.slices import padded, per_slice
from tests.poison import assert_entries, gradient, inf, nan, on, poisoned
from tests.unit.semantics.deletion import NUMBERS, assert_parts, data


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool], ids=str)
def test_sorted_by_deletion(dtype: torch.dtype, descending: bool) -> None:
    def rule(vector: Tensor, present: Tensor) -> list[tuple[Tensor, Tensor]]:
        values, order = torch.sort(vector[present], stable=True, descending=descending)
        return [padded(values, len(vector)), padded(present.nonzero().squeeze(1)[order], len(vector))]

    for case in data(dtype):
        for dim in (0, -1):
            expected = per_slice(rule, case.x, case.mask, dim)
            found = torch.sort(case.masked, dim, descending)
            assert type(found) is torch.return_types.sort
            assert_parts(tuple(found), expected, lambda: str(case))  # noqa: B023
            order = case.masked.argsort(dim=dim, descending=descending, stable=True)
            assert_parts(order, expected[1:], lambda: str(case))  # noqa: B023


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_extreme_entries_by_deletion(dtype: torch.dtype, largest: bool) -> None:
    for case in data(dtype):
        for k in (0, 1, 3, 6):
            expected = per_slice(
                lambda v, p: [padded(torch.topk(v[p], min(k, int(p.sum())), largest=largest).values, k)],  # noqa: B023
                case.x,
                case.mask,
                1,
            )
            values, index = torch.topk(case.masked, k, 1, largest)
            assert_parts(values, expected, lambda: f"k = {k}, {case}")  # noqa: B023
            # which of several equals is chosen is torch's affair; that each is chosen once is ours
            assert torch.equal(index.mask, values.mask)
            assert_parts(case.masked.gather(1, index), expected, lambda: f"k = {k}, {case}")  # noqa: B023
            for row, known in zip(index._values, index.mask, strict=True):
                chosen = row[known].tolist()
                assert len(set(chosen)) == len(chosen)


def test_specified_infinities_and_nan_are_no_sentinels() -> None:
    x = poisoned([None, nan, None, -inf, inf, None], requires_grad=True)
    assert_entries(x.sort().values, [-inf, inf, nan, None, None, None])
    assert_entries(x.argsort(descending=True), [1, 4, 3, None, None, None])
    assert_entries(x.topk(4).indices, [1, 4, 3, None])
    assert_entries(x.topk(2, largest=False).indices, [3, 4])
    assert_entries(poisoned([None, -inf, None, -inf, None]).topk(3).values, [-inf, -inf, None])
    limits = torch.iinfo(torch.int64)
    assert_entries(
        poisoned([None, limits.min, None, limits.min], torch.int64).topk(2).values, [limits.min] * 2
    )
    assert gradient(x.topk(4).values[2:], x).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_gradients_go_back_where_the_entries_came_from() -> None:
    x = poisoned([[3.0, None, 1.0, 2.0]], requires_grad=True)
    weights = torch.tensor([[1.0, 10.0, 100.0, 1000.0]]).double()
    assert gradient(x.sort().values * weights, x).tolist() == [[100.0, 0.0, 1.0, 10.0]]
    assert gradient(x.topk(2).values * weights[:, :2], x).tolist() == [[1.0, 0.0, 0.0, 10.0]]
    assert gradient(x.T.msort() * weights.T, x).tolist() == [[100.0, 0.0, 1.0, 10.0]]
    free = torch.randn(3).double().requires_grad_()
    mask = on(1, 0, 1, 1)
    assert gradgradcheck(
        lambda v: (
            mg.masked(torch.zeros(4).double().masked_scatter(mask, v), mask).sort().values ** 3
        ).compressed(),
        (free,),
    )


def test_small_tensors_and_arguments() -> None:
    assert_entries(poisoned(2.0).sort().values, 2.0)
    assert_entries(poisoned(2.0).topk(1).indices, 0)
    assert_entries(poisoned(None).msort(), None)
    nothing = mg.masked(torch.zeros(2, 0), torch.ones(2, 0, dtype=torch.bool))
    assert nothing.sort().values.shape == nothing.topk(0).values.shape == (2, 0)
    x = poisoned([[2.0, 1.0], [None, 3.0]])
    assert_entries(torch.sort(x, stable=True, dim=0).values, [[2.0, 1.0], [None, 3.0]])
    assert_entries(torch.topk(input=x, k=1, dim=0, largest=False).values, [[2.0, 1.0]])
    for call in (lambda: x.sort(2), lambda: x.argsort(-3), lambda: x.topk(1, 2)):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(RuntimeError):
        x.topk(3)


def test_distinct_entries() -> None:
    x = poisoned([[3.0, None, 1.0], [None, 3.0, nan]])
    assert_entries(x.unique(), [1.0, 3.0, nan])
    found, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    assert_entries(found, [1.0, 3.0, nan])
    assert_entries(inverse, [[1, None, 0], [None, 1, 2]])
    assert_entries(counts, [1, 2, 1])
    assert_entries(torch.unique(x, True, False, True)[1], [1, 2, 1])
    # what is left are neighbours
    y = poisoned([1, None, 1, 2, None], torch.int64)
    found, inverse, counts = y.unique_consecutive(return_inverse=True, return_counts=True)
    assert_entries(found, [1, 2])
    assert_entries(inverse, [0, None, 0, 1, None])
    assert_entries(counts, [2, 1])
    assert_entries(poisoned([None, None]).unique(), [])
    assert_entries(poisoned(True, torch.bool).unique(), [True])


def test_distinct_slices_must_be_complete() -> None:
    x = poisoned([[1.0, 2.0], [None, None], [1.0, 2.0], [0.0, 5.0]])
    found, inverse = x.unique(dim=0, return_inverse=True)
    assert_entries(found, [[0.0, 5.0], [1.0, 2.0]])
    assert_entries(inverse, [1, None, 1, 0])
    assert_entries(x.unique_consecutive(dim=0), [[1.0, 2.0], [0.0, 5.0]])
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"1 slices along dimension 0 .* first at position 1"):
        poisoned([[1.0, 2.0], [None, 2.0]]).unique(dim=0)


def test_membership() -> None:
    x, tests = poisoned([1.0, None, 3.0, 7.0]), poisoned([[None, 7.0], [1.0, None]])
    assert_entries(torch.isin(x, tests), [True, None, False, True])
    assert_entries(torch.isin(x, torch.tensor([3.0])), [False, None, True, False])
    assert_entries(torch.isin(torch.tensor([1.0, inf]), tests, invert=True), [False, True])
    assert_entries(torch.isin(x, tests, assume_unique=True, invert=True), [False, None, True, False])
    nothing = mg.masked(torch.zeros(0).double(), torch.zeros(0, dtype=torch.bool))
    assert_entries(torch.isin(x, poisoned([None, None])), [False, None, False, False])
    assert_entries(torch.isin(x, nothing, invert=True), [True, None, True, True])
    assert_entries(torch.isin(elements=x, test_element=3), [False, None, True, False])
    assert_entries(torch.isin(7.0, tests), True)


def test_search_counts_what_is_left() -> None:
    edges, x = poisoned([1.0, None, 3.0, None, 5.0]), poisoned([0.0, 3.0, None, 5.5, inf])
    assert_entries(torch.bucketize(x, edges), [0, 1, None, 3, 3])
    assert_entries(
        torch.bucketize(x, edges, right=True, out_int32=True), [0, 2, None, 3, 3], dtype=torch.int32
    )
    assert_entries(torch.searchsorted(edges, 4.0), 2)
    assert_entries(torch.searchsorted(torch.arange(3.0).double(), x, side="right"), [1, 3, None, 3, 3])
    assert_entries(torch.searchsorted(poisoned([None, None]), x), [0, 0, None, 0, 0])
    rows = poisoned([[None, 2.0, inf], [1.0, 2.0, None]])
    assert_entries(
        torch.searchsorted(rows, torch.tensor([[2.0, 9.0], [2.0, 9.0]]).double()), [[0, 1], [1, 2]]
    )
    unsorted = poisoned([5.0, None, 1.0])
    assert_entries(torch.searchsorted(unsorted, x, sorter=unsorted.argsort()), [0, 1, None, 2, 2])
    assert_entries(torch.searchsorted(unsorted, x, sorter=torch.tensor([2, 1, 0])), [0, 1, None, 2, 2])


@pytest.mark.parametrize("name", ["sort", "argsort", "topk", "searchsorted", "isin"])
def test_compiled_in_one_graph_and_under_vmap(name: str) -> None:
    def function(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = mg.masked(values, mask)
        more = {"topk": [2], "searchsorted": [x * 2], "isin": [torch.arange(4.0)]}.get(name, [])
        result = getattr(torch, name)(x, *more)
        result = result[0] if isinstance(result, tuple) else result
        return result.filled(0), result.mask

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (on(1, 0, 1), on(0, 0, 1)):
        values = torch.where(mask, torch.tensor([1.0, 2.0, 3.0]), nan)
        for found, expected in zip(compiled(values, mask), function(values, mask), strict=True):
            assert torch.equal(found, expected)
        if name in ("sort", "argsort", "topk"):
            each = torch.vmap(function)(values.expand(2, 3), torch.stack([mask, mask]))
            assert torch.equal(each[0][1], function(values, mask)[0])
