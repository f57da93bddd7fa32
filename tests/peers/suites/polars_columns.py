"""polars: its columns, whose missing values are null; NaN is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

import maskgrad as mg
from tests.peers.columns import GROUPS, Table, column_cases, exchanged, missing
from tests.peers.suite import Case, Masked, Suite


def _frame(t: Table) -> pl.DataFrame:
    return pl.DataFrame({"x": t.x, "y": t.y, "b": t.b, "keys": t.keys})


def _written(x: mg.MaskedTensor) -> Any:
    return pl.from_arrow(mg.interop.to_arrow(x))


def _select(expression: pl.Expr) -> Callable[[Table], Any]:
    return lambda t: _frame(t).select(expression.alias("found"))["found"]


def _one(expression: pl.Expr) -> Callable[[Table], Any]:
    """A number: the only row."""
    return lambda t: _frame(t).select(expression.alias("found"))["found"].first()


def _grouped(expression: pl.Expr, fill: Any = None) -> Callable[[Table], Any]:
    def run(t: Table) -> Any:
        found = _frame(t).group_by("keys").agg(expression.alias("found"))
        every = (
            pl.DataFrame({"keys": np.arange(GROUPS)}).join(found, on="keys", how="left").sort("keys")["found"]
        )
        return every if fill is None else every.fill_null(fill)

    return run


X, Y, B = pl.col("x"), pl.col("y"), pl.col("b")
#: polars adds nothing up to 0, in groups and rows, too.
SUM = pl.when(X.count() > 0).then(X.sum())
THEIRS: Mapping[str, Callable[[Table], Any]] = {
    **{name: _one(getattr(X, name)()) for name in ("mean", "var", "std", "min", "max", "median", "count")},
    **{f"real {name}": _one(getattr(X, name)()) for name in ("mean", "var", "std")},
    "sum": _one(X.sum()),
    "prod": _one(X.product()),
    "real var, ddof 0": _one(X.var(ddof=0)),
    "any": _one(B.any()),
    "all": _one(B.all()),
    "quantile 0.25": _one(X.quantile(0.25, "linear")),
    "quantile 0.9": _one(X.quantile(0.9, "linear")),
    "quantile 0.3 nearest": _one(X.quantile(0.3, "nearest").cast(pl.Float64)),
    "quantile 0.3 lower": _one(X.quantile(0.3, "lower").cast(pl.Float64)),
    "quantile 0.3 higher": _one(X.quantile(0.3, "higher").cast(pl.Float64)),
    "argmax": _one(X.arg_max().cast(pl.Int64)),
    "argmin": _one(X.arg_min().cast(pl.Int64)),
    "cov": _one(pl.cov(X, Y)),
    "corr": _one(pl.corr(X, Y)),
    "dot": _one(X.dot(Y)),
    "sort": _select(X.sort(nulls_last=True)),
    "sort descending": _select(X.sort(descending=True, nulls_last=True)),
    "largest": _select(X.top_k(3).sort(descending=True, nulls_last=True)),
    "cumsum": _select(X.cum_sum()),
    "cumprod": _select(X.cum_prod()),
    "cummax": _select(X.cum_max()),
    "cummin": _select(X.cum_min()),
    "diff": _select(X.diff().slice(1)),
    "add": _select(X + Y),
    "subtract": _select(X - Y),
    "multiply": _select(X * Y),
    "divide": _select(X / Y),
    "floor divide": _select(X // Y),
    "remainder": _select(X % Y),
    "power": _select(X**2),
    "add a number": _select(X + 2),
    "negative": _select(-X),
    "absolute": _select(X.abs()),
    "exp": _select(X.exp()),
    "sqrt": _select(X.sqrt()),
    "log": _select(X.log()),
    "clip": _select(X.clip(-1, 2)),
    "equal": _select(X == Y),
    "not equal": _select(X != Y),
    "less": _select(X < Y),
    "greater or equal": _select(X >= Y),
    "less than a number": _select(X < 1),
    "and": _select(B & (X < Y)),
    "or": _select(B | (X < Y)),
    "xor": _select(B ^ (X < Y)),
    "not": _select(~B),
    "where": _select(pl.when(B).then(X).otherwise(Y)),
    "where there": _select(pl.coalesce(X, Y)),
    "fill": _select(X.fill_null(1)),
    "missing": _select(X.is_null()),
    "drop": _select(X.drop_nulls()),
    "filter": _select(X.filter(pl.col("keys") < 2)),
    "take": _select(X.gather([0, -1, 0])),
    "slice": _select(X.slice(1, 3)),
    "reverse": _select(X.reverse()),
    "concatenate": lambda t: pl.concat([t.x, t.y]),
    "unique": _select(X.drop_nulls().unique().sort()),
    **{f"groups: {name}": _grouped(getattr(X, name)()) for name in ("mean", "var", "min", "max", "median")},
    "groups: sum": _grouped(SUM),
    "groups: count": _grouped(X.count().cast(pl.Int64), 0),
    **{f"scattered: {name}": _grouped(getattr(X, name)()) for name in ("mean", "min", "max")},
    "scattered: sum": _grouped(SUM),
    "rows: sum": _select(pl.sum_horizontal(X, Y)),
    "rows: mean": _select(pl.mean_horizontal(X, Y)),
    "rows: min": _select(pl.min_horizontal(X, Y)),
    "rows: max": _select(pl.max_horizontal(X, Y)),
}


def _column(values: np.ndarray, mask: np.ndarray) -> Any:
    return pl.Series(values).set(pl.Series(~mask), None)


def _plain(found: Any) -> Any:
    if not isinstance(found, pl.Series):
        return missing() if found is None else found
    there = found.is_not_null().to_numpy()
    return Masked(found.fill_null(False if found.dtype == pl.Boolean else 0).to_numpy(), there)


def cases() -> Iterator[Case]:
    """Each line on each table."""
    yield from column_cases(THEIRS, _column, _plain)
    yield from exchanged(_column, _plain, mg.from_arrow, _written)


SUITE = Suite("polars", pl.__version__, cases)
