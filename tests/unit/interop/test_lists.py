"""Lists of different lengths: Arrow's, polars' and awkward's, there and back."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries
from tests.unit.interop.neighbours import NUMBERS, as_dtype

LISTS: list[list[list[int]]] = [[[1, 0, 1], [], [1]], [[], []], [[1]], [], [[1, 1], [0, 1]]]


def padded(lists: list[list[Any]]) -> list[list[Any]]:
    most = max(map(len, lists), default=0)
    return [[*part, *[None] * (most - len(part))] for part in lists]


def typed(lists: list[list[int]], dtype: torch.dtype) -> list[list[Any]]:
    return [as_dtype(list(part), dtype) for part in lists]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("lists", LISTS, ids=str)
def test_arrow_there_and_back(lists: list[list[int]], dtype: torch.dtype, layout: torch.layout) -> None:
    entries = typed(lists, dtype)
    kind = mg.interop.to_arrow(mg.masked(torch.zeros(1, dtype=dtype))).type
    array = pa.array(entries, pa.list_(kind))
    x = mg.from_arrow(array, layout=layout)
    assert x.layout == layout
    assert x.dtype == dtype
    assert x.to_dense().tolist() == padded(entries)
    back = mg.interop.to_arrow(x.to_jagged())
    assert back.type == array.type
    assert back.to_pylist() == entries


@pytest.mark.parametrize(
    "make",
    [
        lambda lists: pa.array(lists, pa.list_(pa.float64())),
        lambda lists: pa.array(lists, pa.large_list(pa.float64())),
        lambda lists: pa.array(lists, pa.list_view(pa.float64())),
        lambda lists: pa.array([[9.0], *lists, [8.0, 8.0]], pa.list_(pa.float64()))[1:-1],
        lambda lists: pa.chunked_array([pa.array([part], pa.list_(pa.float64())) for part in lists]),
        lambda lists: pa.chunked_array([pa.array(lists[:1], pa.list_(pa.float64())), pa.array(lists[1:])]),
    ],
    ids=["list", "large", "view", "slice", "chunks", "two chunks"],
)
def test_the_ways_in_which_arrow_writes_lists(make: Any) -> None:
    lists = [[1.0, 2.0], None, [], [3.0]]
    for layout in (torch.jagged, torch.strided):
        x = mg.from_arrow(make(lists), layout=layout)
        assert_entries(x.to_dense(), [[1.0, 2.0], [None, None], [None, None], [3.0, None]], torch.float64)
    x = mg.from_arrow(make(lists), torch.float32, torch.jagged)
    assert x.offsets().tolist() == [0, 2, 2, 2, 3]
    assert x.dtype == torch.float32


def test_nulls_inside_lists() -> None:
    array = pa.array([[1, 2], [], [3, None, 5]])
    assert mg.from_arrow(array).tolist() == [[1, 2, None], [None] * 3, [3, None, 5]]
    with pytest.raises(ValueError, match=r"obj has a null at position 1 of list 2.*layout=torch.strided"):
        mg.from_arrow(array, layout=torch.jagged)
    series = pl.Series("s", [[1, 2], None, [3, None, 5]])
    assert mg.from_arrow(series).tolist() == [[1, 2, None], [None] * 3, [3, None, 5]]
    with pytest.raises(ValueError, match=r"obj has a null at position 1 of list 2"):
        mg.from_arrow(series, layout=torch.jagged)


def test_features_in_lists_of_one_size() -> None:
    kind = pa.list_(pa.list_(pa.float32(), 2))
    array = pa.array([[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]], kind)
    x = mg.from_arrow(array, layout=torch.jagged)
    assert x.shape == (3, 2, 2)
    assert x.values().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert mg.interop.to_arrow(x).equals(array)
    assert mg.interop.to_arrow(x.transpose(0, 1)).equals(array)
    with pytest.raises(ValueError, match=r"no features to store"):
        mg.interop.to_arrow(mg.from_offsets(torch.zeros(2, 0), torch.tensor([0, 2])))


def test_arrays_without_lists_are_not_jagged() -> None:
    polars = (pl.Series([1]), pl.DataFrame({"a": [1]}))
    for obj in (pa.array([1]), pa.table({"a": [1]}), pa.array([[1]], pa.list_(pa.int8(), 1)), *polars):
        with pytest.raises(ValueError, match=r"mg.from_arrow: layout=torch.jagged is for one array of lists"):
            mg.from_arrow(obj, layout=torch.jagged)
    with pytest.raises(ValueError, match=r"layout must be torch.strided or torch.jagged"):
        mg.from_arrow(pa.array([[1]]), layout=torch.sparse_coo)
    x = mg.from_arrow(pa.array([[1]]), layout=torch.jagged)
    with pytest.raises(ValueError, match=r"names must be omitted for a jagged tensor"):
        mg.interop.to_arrow(x, ["a"])
    with pytest.raises(TypeError, match=r"to_arrow: x must be real"):
        mg.interop.to_arrow(x.to(torch.complex64))


def from_awkward(array: Any, layout: torch.layout = torch.jagged) -> Any:
    return mg.from_arrow(ak.to_arrow(array, extensionarray=False), layout=layout)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lists", LISTS, ids=str)
def test_awkward_there_and_back_by_arrow(lists: list[list[int]], dtype: torch.dtype) -> None:
    entries = typed(lists, dtype)
    numbers = np.array([entry for part in entries for entry in part], dtype=str(dtype).removeprefix("torch."))
    array = ak.unflatten(ak.Array(numbers), np.array([len(part) for part in entries], dtype=int))
    x = from_awkward(array)
    assert (x.layout, x.dtype) == (torch.jagged, dtype)
    assert x.to_dense().tolist() == from_awkward(array, torch.strided).tolist() == padded(entries)
    assert ak.from_arrow(mg.interop.to_arrow(x)).to_list() == entries


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (ak.Array([[1.0, 2.0], [], [3.0]])[1:], [[], [3.0]]),
        (ak.Array([[1.0, 2.0], [], [3.0]])[::-1], [[3.0], [], [1.0, 2.0]]),
        (ak.Array([[1.0, 2.0], None, [3.0]]), [[1.0, 2.0], [], [3.0]]),
        (ak.Array([[{"v": 1.0}], []])["v"], [[1.0], []]),
    ],
    ids=["slice", "reversed", "a list is missing", "field"],
)
def test_lists_of_awkward_by_arrow(array: Any, expected: list[list[float]]) -> None:
    x = from_awkward(array)
    assert [part.tolist() for part in x.values().split(x.lengths().tolist())] == expected


@pytest.mark.parametrize("make", [lambda array: array, ak.to_arrow], ids=["array", "extension types"])
def test_an_array_of_awkward_is_refused_with_the_line(make: Any) -> None:
    array = ak.Array([[1.0, 2.0], [], [3.0]])
    with pytest.raises(TypeError, match=r"of awkward; use mg\.from_arrow") as caught:
        mg.from_arrow(make(array))
    line = str(caught.value).rpartition("; use ")[2]
    assert eval(line).tolist() == padded(array.to_list())
