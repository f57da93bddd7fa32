"""Data of other libraries given to constructors: taken with its mask, or refused with a line that keeps it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
import xarray as xr
from torch import Tensor, nan
from torch.nn.utils.rnn import pack_sequence

import maskgrad as mg
from tests.poison import assert_entries, gradient, on, poisoned

pytestmark = pytest.mark.filterwarnings("ignore:.*(prototype|nested tensors):UserWarning")

ROWS = [[1.0, None], [3.0, 4.0]]
SPLIT = [[1.0, 2.0], [3.0, None]]
FRAME = pd.DataFrame({"a": [1.0, 3.0], "b": [nan, 4.0]})
PLAIN = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
VALUES, MASK = torch.tensor([[1.0, 9.0], [3.0, 4.0]]), on([1, 0], [1, 1])
#: Each with what a MaskedTensor of it contains.
FOREIGN: dict[str, tuple[Callable[[], Any], Any]] = {
    "pandas": (lambda: FRAME, ROWS),
    "a column of pandas": (lambda: FRAME["b"], [None, 4.0]),
    "an array of pandas": (lambda: pd.array([1, None], dtype="Int64"), [1, None]),
    "polars": (lambda: pl.DataFrame({"a": [1.0, 3.0], "b": [None, 4.0]}), ROWS),
    "arrow": (lambda: pa.array([1.0, None]), [1.0, None]),
    "awkward": (lambda: ak.Array([[1.0, 2.0], [3.0]]), SPLIT),
    "xarray": (lambda: xr.DataArray(FRAME.to_numpy().copy()), ROWS),
    "scipy": (lambda: scipy.sparse.csr_array(np.array([[1.0, 0.0], [3.0, 4.0]])), ROWS),
    "torch.masked": (lambda: torch.masked.masked_tensor(VALUES, MASK), ROWS),
    "nested, jagged": (lambda: torch.nested.nested_tensor(PLAIN, layout=torch.jagged), SPLIT),
    "nested, strided": (lambda: torch.nested.nested_tensor(PLAIN), SPLIT),
    "packed": (lambda: pack_sequence(PLAIN), SPLIT),
    "a list with None": (lambda: [1.0, None], [1.0, None]),
    "a tuple with None": (lambda: (1.0, None), [1.0, None]),
    "lists with None": (lambda: ROWS, ROWS),
    "lists of two lengths": (lambda: [[1.0, 2.0], [3.0]], SPLIT),
    "lists of two lengths with None": (lambda: [[1.0, None], [3.0]], [[1.0, None], [3.0, None]]),
    "a list of numpy.ma": (lambda: [np.ma.array([1.0, 9.0], mask=[False, True])] * 2, [[1.0, None]] * 2),
    "a list of MaskedTensors": (lambda: list(poisoned(ROWS)), ROWS),
    "objects": (lambda: np.array([1.0, None], dtype=object), [1.0, None]),
    "numpy": (lambda: np.array([1.0, 2.0]), [1.0, 2.0]),
    "a list": (lambda: [1.0, 2.0], [1.0, 2.0]),
    "a list of tensors of one element": (lambda: [torch.tensor(1.0), torch.tensor(2.0)], [1.0, 2.0]),
    "a dict": (lambda: {"input_ids": torch.tensor([1, 2])}, [1, 2]),
    "sparse": (lambda: torch.tensor([[1.0, 0.0], [3.0, 4.0]]).to_sparse(), ROWS),
}
LENGTHS = torch.tensor([2, 1])
TAKERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "masked": (mg.masked, "data"),
    "from_nan": (mg.from_nan, "data"),
    "from_lengths": (lambda data: mg.from_lengths(data, LENGTHS), "data"),
    "ranks": (mg.ranks, "x"),
    "functional": (mg.functional.mean, "input"),
    "align": (lambda x: mg.align(x, x), "x"),
    "from_offsets": (lambda values: mg.from_offsets(values, torch.tensor([0, 2])), "values"),
}


def line(error: BaseException) -> str:
    """The expression that a message offers."""
    text = str(error).rpartition("; use ")[2].partition(", or the methods")[0]
    return re.sub(r", (whose stored|one of its).*", "", text)


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_refused_is_converted_by_the_line_of_the_message(taker: str, kind: str) -> None:
    call, name = TAKERS[taker]
    make, expected = FOREIGN[kind]
    data = make()
    with pytest.raises(TypeError, match="; use ") as caught:
        call(data)
    scope = {"mg": mg, "torch": torch, "np": np, "pa": pa, "ak": ak, name: data}
    found = eval(line(caught.value), scope)
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, type("Marked", (np.ma.MaskedArray,), {})])
def test_an_array_of_numpy_ma_keeps_its_mask(kind: Any) -> None:
    array = np.ma.array([[1.0, 9.0], [nan, 4.0]], mask=[[False, True], [False, False]]).view(kind)
    assert_entries(mg.masked(array), [[1.0, None], [nan, 4.0]])
    assert_entries(mg.masked(array, on([1, 1], [1, 0])), [[1.0, None], [nan, None]])
    assert_entries(mg.from_nan(array), [[1.0, None], [None, 4.0]])
    assert_entries(mg.from_lengths(array, LENGTHS), [[1.0, None], [nan, None]])


def test_lengths_of_a_masked_tensor_keep_its_mask() -> None:
    x = poisoned([[1.0, None, 3.0], [None, 5.0, 6.0]], requires_grad=True)
    found = mg.from_lengths(x, LENGTHS)
    assert_entries(found, [[1.0, None, None], [None, None, None]])
    assert gradient(found.square(), x).tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    whole = mg.masked(torch.arange(6.0).reshape(2, 3))
    jagged = mg.from_lengths(whole, LENGTHS, layout=torch.jagged)
    assert jagged.layout is torch.jagged
    assert_entries(jagged.to_dense(), [[0.0, 1.0, None], [3.0, None, None]])
    with pytest.raises(ValueError, match="unspecified"):
        mg.from_lengths(x, torch.tensor([3, 1]), layout=torch.jagged)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
def test_a_mask_in_place_of_lengths_names_both_ways(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    data, mask = torch.ones(shape), on([1, 1, 0], [1, 0, 0]).to(dtype)
    with pytest.raises(TypeError, match=r"lengths must be an integer tensor .*found a mask of") as caught:
        mg.from_lengths(data, mask)
    one, other = str(caught.value).rpartition("; use ")[2].partition(" if all")[0].split(", or ")
    scope = {"mg": mg, "data": data, "mask": mask}
    wanted = (mask != 0).reshape(2, 3, *[1] * (len(shape) - 2)).expand(shape)
    assert eval(one, scope).mask.equal(wanted)
    assert eval(other, scope).mask.equal(wanted)


def test_a_mask_of_whole_sequences_in_place_of_lengths() -> None:
    data, mask = torch.ones(2, 3), on(1, 0)
    with pytest.raises(
        TypeError, match=r"found a mask of torch.bool and shape \(2,\); use mg.masked\(data, mask"
    ) as caught:
        mg.from_lengths(data, mask)
    assert_entries(eval(line(caught.value), {"mg": mg, "data": data, "mask": mask}), [[1.0] * 3, [None] * 3])


MASKS: dict[str, Any] = {
    "numpy": np.array([True, False]),
    "numpy.ma": np.ma.array([True, True], mask=[False, True]),
    "a list": [True, False],
    "a list with None": [True, None],
    "a column of pandas": pd.Series([True, False]),
    "polars": pl.Series([True, False]),
    "a dict": {"attention_mask": on(1, 0)},
    "a list of integers": [1, 0],
}


@pytest.mark.parametrize("kind", [*MASKS, "torch.masked", "nested"])
def test_a_mask_of_another_library_is_converted_by_the_line_of_the_message(kind: str) -> None:
    data: Tensor = torch.tensor([1.0, 2.0])
    expected: list[Any] = [1.0, None]
    if kind == "nested":
        mask: Any = torch.nested.nested_tensor([on(1, 1), on(1)], layout=torch.jagged)
        data, expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, None]]
    else:
        mask = torch.masked.masked_tensor(on(1, 1), on(1, 0)) if kind == "torch.masked" else MASKS[kind]
    with pytest.raises(TypeError, match=r"mask must be a Boolean torch.Tensor") as caught:
        mg.masked(data, mask)
    found = eval(line(caught.value), {"mg": mg, "torch": torch, "np": np, "mask": mask})
    assert_entries(mg.masked(data, found), expected)
