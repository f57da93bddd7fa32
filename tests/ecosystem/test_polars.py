"""polars and pyarrow: a vector is taken as it is, through Arrow's interface; a matrix is a table."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage


@works("polars", "vectors in `Series` and as columns of a `DataFrame`; unspecified is null")
@works("pyarrow", "vectors in `pa.array` and as columns of `pa.table`; unspecified is null")
def test_vectors() -> None:
    x, _, _ = garbage(6)
    assert pl.Series("a", x).to_list() == x.tolist()
    assert pl.DataFrame({"a": x, "n": range(6)})["a"].null_count() == 6 - x.num_specified().item()
    assert pa.array(x).to_pylist() == x.tolist()
    assert pa.table({"a": x})["a"].null_count == 6 - x.num_specified().item()
    assert mg.from_arrow(pl.Series("a", x)).tolist() == x.tolist()
    whole = mg.masked(x.filled(1.0).long(), x.mask)
    assert pl.Series("a", whole).dtype == pl.Int64


@one_line("polars", "tables", "`pl.from_arrow(mg.interop.to_arrow(x))`, `mg.from_arrow(table)`")
@one_line("pyarrow", "tables", "`mg.interop.to_arrow(x)`, `mg.from_arrow(table)`")
def test_matrices() -> None:
    x, _, _ = garbage(6, 2)
    assert mg.from_arrow(pl.from_arrow(mg.interop.to_arrow(x))).tolist() == x.tolist()
    assert mg.from_arrow(mg.interop.to_arrow(x)).tolist() == x.tolist()


@refused("polars", "a matrix in `DataFrame` or `Series`", "`pl.from_arrow(mg.interop.to_arrow(x))`")
@refused("pyarrow", "a matrix in `pa.array`", "`mg.interop.to_arrow(x)`")
def test_matrices_refuse() -> None:
    x, _, _ = garbage(6, 2)
    for call in (lambda: pl.Series("a", x), lambda: pa.array(x), lambda: pl.DataFrame(x)):
        with pytest.raises(UnsupportedOperationError, match=r"mg\.interop\.to_arrow\(x\).*pl\.from_arrow"):
            call()


@refused(
    "polars",
    "arithmetic and comparisons with MaskedTensors, in both orders",
    "`mg.from_arrow(column)`, `pl.from_arrow(mg.interop.to_arrow(x))`, `pl.Series(x)`",
)
@pytest.mark.parametrize("function", [operator.add, operator.eq])
def test_arithmetic_refuses(function: Callable[[Any, Any], Any]) -> None:
    x = garbage(4)[0]
    for other in (pl.Series([1.0, 2.0, 3.0, 4.0]), pl.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]})):
        for call in (lambda other: function(other, x), lambda other: function(x, other)):
            with pytest.raises(TypeError, match=r"pl\.from_arrow\(mg\.interop\.to_arrow\(x\)\)"):
                call(other)
    with pytest.raises(TypeError, match=r"pl\.from_arrow\(mg\.interop\.to_arrow\(x\)\)"):
        function(x, pl.col("a"))
    with pytest.raises(TypeError, match="MaskedTensor"):
        function(pl.col("a"), x)
