"""Hugging Face datasets: tables of Arrow, with null for what is unspecified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, disable_caching, disable_progress_bars

import maskgrad as mg
from tests.ecosystem.rows import beware, one_line, refused, works
from tests.ecosystem.truth import garbage

disable_progress_bars()
disable_caching()


@one_line(
    "datasets", "columns with holes", "`Dataset.from_dict({'x': x.tolist()})`, `mg.from_arrow(ds.data['x'])`"
)
def test_there_and_back() -> None:
    x, _, _ = garbage(6, 3)
    ds = Dataset.from_dict({"x": x[:, 0].tolist(), "n": list(range(6))})
    assert ds["x"][:] == x[:, 0].tolist()
    assert mg.from_arrow(ds.data["x"].combine_chunks()).tolist() == x[:, 0].tolist()
    rows = Dataset.from_dict({"x": x.tolist()})
    assert rows[:]["x"] == x.tolist()


@works("datasets", "`add_column` of a vector; unspecified is null")
def test_columns_are_added() -> None:
    x, _, _ = garbage(6)
    ds = Dataset.from_dict({"n": list(range(6))}).add_column("x", x)
    assert ds["x"][:] == x.tolist()


@beware(
    "datasets",
    "`ds.with_format('torch')` reads null as NaN",
    "`mg.from_nan(batch['x'])`, if NaN is not a value",
)
def test_null_becomes_nan() -> None:
    x, _, _ = garbage(6)
    ds = Dataset.from_dict({"x": x.tolist()}).with_format("torch")
    assert mg.from_nan(ds[:]["x"]).tolist() == x.tolist()


@refused("datasets", "MaskedTensors in `from_dict`, `from_list` and results of `map`", "`x.tolist()`")
def test_masked_tensors_refuse(tmp_path: Path) -> None:
    x, _, _ = garbage(4, 3)
    calls: list[Any] = [
        lambda: Dataset.from_dict({"x": x}),
        lambda: Dataset.from_list([{"x": row} for row in x]),
        lambda: Dataset.from_dict({"n": [0, 1]}).map(lambda row: {"x": x[row["n"]]}),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"x\.tolist\(\)"):
            call()
