"""Arrow: bitmaps, offsets, chunks, garbage under nulls, and that nothing is shared."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned
from tests.unit.interop.neighbours import COLUMNS, NUMBERS, as_dtype, inf, nan

ARROW = {
    torch.bool: pa.bool_(),
    torch.float16: pa.float16(),
    torch.float32: pa.float32(),
    torch.float64: pa.float64(),
    **{getattr(torch, f"{u}int{n}"): getattr(pa, f"{u}int{n}")() for u in ("", "u") for n in (8, 16, 32, 64)},
}


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("column", COLUMNS, ids=["full", "some", "nothing", "empty"])
def test_every_dtype_there_and_back(column: list[int | None], dtype: torch.dtype) -> None:
    entries = as_dtype(column, dtype)
    array = pa.array([None, *entries, None], ARROW[dtype])[1:-1]
    x = mg.from_arrow(array)
    assert_entries(x, entries, dtype)
    back = mg.interop.to_arrow(x)
    assert back.type == array.type
    assert back.to_pylist() == entries
    back.validate(full=True)


def test_null_and_nan_are_different_things() -> None:
    x = mg.from_arrow(pa.array([1.0, None, nan, inf]))
    assert_entries(x, [1.0, None, nan, inf], torch.float64)
    back = mg.interop.to_arrow(x)
    assert back.null_count == 1
    assert back.is_null().to_pylist() == [False, True, False, False]
    assert np.isnan(back[2].as_py())
    array = mg.interop.to_arrow(poisoned([1.0, None, None, 2.0]))
    assert np.frombuffer(array.buffers()[1]).tolist() == [1.0, 0.0, 0.0, 2.0]  # no garbage


def test_tensors_and_arrow_do_not_share_on_the_way_out() -> None:
    data = torch.tensor([1.0, 2.0])
    array = mg.interop.to_arrow(mg.masked(data))
    data.zero_()
    assert array.to_pylist() == [1.0, 2.0]
    assert mg.interop.to_arrow(poisoned([1.0, None], requires_grad=True)).to_pylist() == [1.0, None]


def test_lists_of_one_size_become_rows() -> None:
    array = pa.array([[1, 2], None, [None, 4], [5, 6]], pa.list_(pa.int32(), 2))
    assert_entries(mg.from_arrow(array), [[1, 2], [None, None], [None, 4], [5, 6]], torch.int32)
    assert_entries(mg.from_arrow(array[2:]), [[None, 4], [5, 6]])
    assert_entries(mg.from_arrow(array[1:3]), [[None, None], [None, 4]])
    assert mg.from_arrow(array[:0]).shape == (0, 2)
    assert mg.from_arrow(pa.array([[], None], pa.list_(pa.int8(), 0))).shape == (2, 0)


def test_tables_there_and_back() -> None:
    x = poisoned([[1, None, 3], [None, None, 6]], torch.int16)
    table = mg.interop.to_arrow(x, ["a", "b", "c"])
    assert table.schema.names == ["a", "b", "c"]
    assert table.to_pylist() == [{"a": 1, "b": None, "c": 3}, {"a": None, "b": None, "c": 6}]
    assert_entries(mg.from_arrow(table), x.tolist(), torch.int16)
    assert mg.interop.to_arrow(x.T).schema.names == ["0", "1"]
    for shape in ((0, 2), (3, 0), (0, 0)):
        assert mg.from_arrow(mg.interop.to_arrow(mg.masked(torch.empty(shape)))).shape == shape


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            pa.array(["a"]),
            r"found dtype string; if it can be parsed as numbers, use array.cast\(pa.float64\(\)\)",
        ),
        (
            pa.array([[[1], [2, 3]]]),
            "inside its lists.*found dtype list.*with inner lists of one size: pa.list_",
        ),
        (pa.array([None]), "found dtype null; .*cast"),
        (pa.array(["a"]).dictionary_encode(), "found dtype dictionary.*dictionary_encode"),
        (pa.array([0], pa.timestamp("s")), r"timestamp\[s\].*since some origin"),
        (pa.array([1]).cast(pa.decimal128(30, 2)), "decimal128.*cast"),
        (pa.array([{"a": 1}]), "found dtype struct"),
        (
            pa.array([["a"]], pa.list_(pa.string(), 1)),
            r"obj, inside its lists, must contain.*found dtype string; cast the lists: array.cast",
        ),
    ],
    ids=lambda a: str(a.type) if isinstance(a, pa.Array) else "",
)
def test_types_without_numbers_are_refused(array: pa.Array, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        mg.from_arrow(array)


def test_tables_name_the_column_that_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"column 'name' must contain numbers or Booleans, found dtype string"
    ):
        mg.from_arrow(pa.table({"age": [1], "name": ["a"]}))
    with pytest.raises(TypeError, match=r"column 'v' must .*convert lists separately"):
        mg.from_arrow(pa.table({"v": pa.array([[1, 2]], pa.list_(pa.int8(), 2))}))
    with pytest.raises(TypeError, match=r"column 'v' must .*convert lists separately"):
        mg.from_arrow(pa.table({"v": pa.array([[1, 2]])}))
    with pytest.raises(TypeError, match=r"column 'a' \(torch.uint64\) and column 'b' .* dtype=torch.float64"):
        mg.from_arrow(pa.table({"a": pa.array([1], pa.uint64()), "b": [1]}))


@pytest.mark.parametrize("obj", [[1, 2], np.ones(2), torch.ones(2), None], ids=lambda o: type(o).__name__)
def test_other_objects_are_refused(obj: object) -> None:
    with pytest.raises(TypeError, match=rf"obj must be a pyarrow .*found {type(obj).__name__}; .*pa.array"):
        mg.from_arrow(obj)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"dtype must be a torch.dtype or None, found 'float'"):
        mg.from_arrow(pa.array([1]), "float")
    x = poisoned([[1.0, None]])
    with pytest.raises(ValueError, match=r"names must be one for each of 2 columns, found 1"):
        mg.interop.to_arrow(x, ["a"])
    with pytest.raises(TypeError, match=r"names must be a sequence of strings, found the string 'ab'"):
        mg.interop.to_arrow(x, "ab")
    with pytest.raises(ValueError, match=r"names must be none for a single column"):
        mg.interop.to_arrow(x[0], ["a", "b"])
    for shape in ((), (1, 1, 1)):
        with pytest.raises(ValueError, match=r"one dimension \(a column\) or two.*use x.reshape"):
            mg.interop.to_arrow(mg.masked(torch.ones(shape)))
    with pytest.raises(TypeError, match=r"x must be real, found torch.complex64; convert x.real and x.imag"):
        mg.interop.to_arrow(mg.masked(torch.ones(1, dtype=torch.complex64)))
    with pytest.raises(TypeError, match=r"x must be a MaskedTensor, found Tensor; wrap it in mg.masked"):
        mg.interop.to_arrow(torch.ones(1))
    with pytest.raises(TypeError, match=r"strided layout, found torch.sparse_coo; x.to_dense\(\)"):
        mg.interop.to_arrow(poisoned([[1.0, None]]).to_sparse())
