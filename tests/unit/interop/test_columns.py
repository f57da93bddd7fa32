from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries

TEXT = [object, "string", "string[pyarrow]", pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.large_string())]


@pytest.mark.parametrize("dtype", [*TEXT, "category"], ids=str)
def test_text_and_categories_become_codes_and_missing_values_are_masked(dtype: object) -> None:
    column = pd.Series(["pear", None, "apple", "pear"], dtype=dtype)
    for obj in (column, column.array, pd.Index(column)):
        x = mg.from_pandas(obj)
        assert_entries(x, [1, None, 0, 1], torch.int64)
        assert x.to_tensor(7).tolist() == [1, 7, 0, 1]
        assert x.get_data().min() >= 0  # never -1: a look-up may read it
    assert_entries(mg.from_pandas(column, categories=["pear", "fig", "apple"]), [0, None, 2, 0], torch.int64)


def test_the_order_is_that_of_the_categories() -> None:
    column = pd.Series(
        pd.Categorical(["low", None, "high"], categories=["low", "middle", "high"], ordered=True)
    )
    assert_entries(mg.from_pandas(column), [0, None, 2], torch.int64)
    assert_entries(mg.from_pandas(column, categories=["high", "low"]), [1, None, 0], torch.int64)


def test_columns_of_a_table_are_told_apart() -> None:
    frame = pd.DataFrame(
        {"n": pd.Series([1, None], dtype="Int64"), "word": ["b", None], "year": [2013, 2014]}
    )
    assert_entries(mg.from_pandas(frame), [[1, 0, 2013], [None, None, 2014]], torch.int64)
    x = mg.from_pandas(frame, categories={"word": ["a", "b"], "year": [2014, 2013]})
    assert_entries(x, [[1, 1, 1], [None, None, 0]], torch.int64)
    with_numbers = mg.from_pandas(frame[["word"]].assign(height=[1.5, float("nan")]))
    assert_entries(with_numbers, [[0, 1.5], [None, None]], torch.float64)


def test_an_unknown_word_is_refused_with_its_name() -> None:
    frame = pd.DataFrame({"word": ["a", "c", None, "d"]})
    with pytest.raises(
        ValueError,
        match=r"column 'word' has 2 values that are not among its categories, the first 'c'; .*isin",
    ):
        mg.from_pandas(frame, categories={"word": ["a", "b"]})


@pytest.mark.parametrize("categories", [["a", "a"], ["a", None]])
def test_categories_must_differ_and_none_be_missing(categories: list[str | None]) -> None:
    with pytest.raises(ValueError, match=r"series 'w' must have distinct categories without missing ones"):
        mg.from_pandas(pd.Series(["a"], name="w"), categories=categories)


def test_categories_of_another_kind_are_refused() -> None:
    frame = pd.DataFrame({"word": ["a"]})
    with pytest.raises(TypeError, match=r"must map names of columns to lists, found list; use categories=\{"):
        mg.from_pandas(frame, categories=["a"])
    with pytest.raises(
        ValueError, match=r"contains the column 'world', which is not in the table; it has \['word'\]"
    ):
        mg.from_pandas(frame, categories={"world": ["a"]})
    for wrong in ("a", {"word": ["a"]}):
        with pytest.raises(TypeError, match=r"must be a list of its values, found \w+; use categories="):
            mg.from_pandas(frame["word"], categories=wrong)


def test_dates_and_numbers_stored_as_text_are_text() -> None:
    dates = pd.Series(["2024-02-05", None, "2024-01-05"])
    assert_entries(mg.from_pandas(dates), [1, None, 0], torch.int64)
    days = (pd.to_datetime(dates) - pd.Timestamp("2024-01-01")) / pd.Timedelta("1D")
    assert_entries(mg.from_pandas(days), [35.0, None, 4.0], torch.float64)
    assert_entries(mg.from_pandas(pd.Series(["10", "9"])), [0, 1], torch.int64)
