"""pandas: its nullable columns (``Float64``, ``Int64``, ``boolean``), whose missing values are ``pd.NA``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

import maskgrad as mg
from tests.peers.columns import GROUPS, Table, column_cases, exchanged, missing
from tests.peers.suite import Case, Masked, Suite

DTYPES = {"float64": "Float64", "float32": "Float32", "int64": "Int64", "bool": "boolean"}


def _grouped(name: str) -> Callable[[Table], Any]:
    return lambda t: getattr(t.x.groupby(t.keys), name)(**_least(name)).reindex(range(GROUPS))


def _least(name: str) -> dict[str, int]:
    """A sum of nothing is 0, unless something is asked for."""
    return {"min_count": 1} if name == "sum" else {}


def _rows(name: str) -> Callable[[Table], Any]:
    return lambda t: getattr(pd.DataFrame({"x": t.x, "y": t.y}), name)(axis=1, **_least(name))


THEIRS: Mapping[str, Callable[[Table], Any]] = {
    **{
        name: (lambda t, name=name: getattr(t.x, name)())
        for name in ("sum", "prod", "mean", "var", "std", "min", "max")
    },
    **{
        name: (lambda t, name=name: getattr(t.x, name)())
        for name in ("cumsum", "cumprod", "cummax", "cummin", "median")
    },
    **{f"real {name}": (lambda t, name=name: getattr(t.x, name)()) for name in ("mean", "var", "std")},
    "real var, ddof 0": lambda t: t.x.var(ddof=0),
    "any": lambda t: t.b.any(),
    "all": lambda t: t.b.all(),
    "count": lambda t: t.x.count(),
    "quantile 0.25": lambda t: t.x.astype("Float64").quantile(0.25),
    "quantile 0.9": lambda t: t.x.astype("Float64").quantile(0.9),
    "quantile 0.3 nearest": lambda t: t.x.astype("Float64").quantile(0.3, interpolation="nearest"),
    "quantile 0.3 lower": lambda t: t.x.astype("Float64").quantile(0.3, interpolation="lower"),
    "quantile 0.3 higher": lambda t: t.x.astype("Float64").quantile(0.3, interpolation="higher"),
    "argmax": lambda t: t.x.idxmax(),
    "argmin": lambda t: t.x.idxmin(),
    "cov": lambda t: t.x.cov(t.y),
    "corr": lambda t: t.x.corr(t.y),
    "sort": lambda t: t.x.sort_values(),
    "sort descending": lambda t: t.x.sort_values(ascending=False),
    "largest": lambda t: t.x.sort_values(ascending=False).head(3),
    "diff": lambda t: t.x.diff().iloc[1:],
    "add": lambda t: t.x + t.y,
    "subtract": lambda t: t.x - t.y,
    "multiply": lambda t: t.x * t.y,
    "divide": lambda t: t.x / t.y,
    "floor divide": lambda t: t.x // t.y,
    "remainder": lambda t: t.x % t.y,
    "power": lambda t: t.x**2,
    "add a number": lambda t: t.x + 2,
    "negative": lambda t: -t.x,
    "absolute": lambda t: t.x.abs(),
    "exp": lambda t: np.exp(t.x),
    "sqrt": lambda t: np.sqrt(t.x),
    "log": lambda t: np.log(t.x),
    "clip": lambda t: t.x.clip(-1, 2),
    "equal": lambda t: t.x == t.y,
    "not equal": lambda t: t.x != t.y,
    "less": lambda t: t.x < t.y,
    "greater or equal": lambda t: t.x >= t.y,
    "less than a number": lambda t: t.x < 1,
    "and": lambda t: t.b & (t.x < t.y),
    "or": lambda t: t.b | (t.x < t.y),
    "xor": lambda t: t.b ^ (t.x < t.y),
    "not": lambda t: ~t.b,
    "where": lambda t: t.x.where(t.b, t.y),
    "where there": lambda t: t.x.combine_first(t.y),
    "fill": lambda t: t.x.fillna(1),
    "missing": lambda t: t.x.isna(),
    "drop": lambda t: t.x.dropna(),
    "filter": lambda t: t.x[t.keys < 2],
    "take": lambda t: t.x.iloc[[0, -1, 0]],
    "slice": lambda t: t.x.iloc[1:4],
    "reverse": lambda t: t.x.iloc[::-1],
    "concatenate": lambda t: pd.concat([t.x, t.y]),
    "unique": lambda t: t.x.dropna().drop_duplicates().sort_values(),
    **{f"groups: {name}": _grouped(name) for name in ("sum", "mean", "var", "min", "max", "median")},
    "groups: count": lambda t: t.x.groupby(t.keys).count().reindex(range(GROUPS), fill_value=0),
    **{f"scattered: {name}": _grouped(name) for name in ("sum", "mean", "min", "max")},
    **{f"rows: {name}": _rows(name) for name in ("sum", "mean", "min", "max")},
}


def _column(values: np.ndarray, mask: np.ndarray) -> Any:
    return pd.Series(values).astype(DTYPES[str(values.dtype)]).mask(~mask)


def _plain(found: Any) -> Any:
    if found is pd.NA:
        return missing()
    if not isinstance(found, pd.Series):
        return found
    there = found.notna().to_numpy()
    kind = found.dtype.numpy_dtype if hasattr(found.dtype, "numpy_dtype") else found.dtype
    return Masked(found.fillna(False if found.dtype == "boolean" else 0).to_numpy(dtype=kind), there)


def cases() -> Iterator[Case]:
    """Each line on each table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from column_cases(THEIRS, _column, _plain)
        yield from exchanged(_column, _plain, mg.from_pandas, mg.interop.to_pandas)


SUITE = Suite("pandas", pd.__version__, cases)
