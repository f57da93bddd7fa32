"""pyarrow: ``pyarrow.compute`` on arrays with nulls; every other one has been cut from a longer array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import maskgrad as mg
from tests.peers.columns import GROUPS, Table, column_cases, exchanged
from tests.peers.suite import Case, Masked, Suite


def _of(name: str, **options: Any) -> Callable[[Table], Any]:
    return lambda t: getattr(pc, name)(t.x, **options)


def _both(name: str, **options: Any) -> Callable[[Table], Any]:
    return lambda t: getattr(pc, name)(t.x, t.y, **options)


def _logic(name: str) -> Callable[[Table], Any]:
    return lambda t: getattr(pc, name)(t.b, pc.less(t.x, t.y))


def _quantile(q: float, how: str = "linear") -> Callable[[Table], Any]:
    return lambda t: pc.quantile(t.x, q, interpolation=how).cast(pa.float64())[0]


def _sorted(order: Any) -> Callable[[Table], Any]:
    return lambda t: t.x.take(pc.array_sort_indices(t.x, order=order, null_placement="at_end"))


def _grouped(name: str, fill: Any = None) -> Callable[[Table], Any]:
    def run(t: Table) -> Any:
        found = pa.table({"keys": t.keys, "x": t.x}).group_by("keys").aggregate([("x", name)])
        every = pa.table({"keys": np.arange(GROUPS)}).join(found, "keys").sort_by("keys")[f"x_{name}"]
        return every if fill is None else every.fill_null(fill)

    return run


THEIRS: Mapping[str, Callable[[Table], Any]] = {
    **{name: _of(name) for name in ("sum", "mean", "min", "max", "count")},
    "prod": _of("product"),
    "var": _of("variance", ddof=1),
    "std": _of("stddev", ddof=1),
    "real mean": _of("mean"),
    "real var": _of("variance", ddof=1),
    "real std": _of("stddev", ddof=1),
    "real var, ddof 0": _of("variance", ddof=0),
    "any": lambda t: pc.any(t.b, min_count=0),
    "all": lambda t: pc.all(t.b, min_count=0),
    "median": _quantile(0.5),
    "quantile 0.25": _quantile(0.25),
    "quantile 0.9": _quantile(0.9),
    **{f"quantile 0.3 {how}": _quantile(0.3, how) for how in ("nearest", "lower", "higher")},
    "sort": _sorted("ascending"),
    "sort descending": _sorted("descending"),
    "cumsum": _of("cumulative_sum", skip_nulls=True),
    "cumprod": _of("cumulative_prod", skip_nulls=True),
    "cummax": _of("cumulative_max", skip_nulls=True),
    "cummin": _of("cumulative_min", skip_nulls=True),
    "diff": lambda t: pc.pairwise_diff(t.x).slice(1),
    "add": _both("add"),
    "subtract": _both("subtract"),
    "multiply": _both("multiply"),
    "divide": lambda t: pc.divide(t.x.cast(pa.float64()), t.y),
    "power": lambda t: pc.power(t.x, 2),
    "add a number": lambda t: pc.add(t.x, 2),
    "negative": _of("negate"),
    "absolute": _of("abs"),
    "exp": _of("exp"),
    "sqrt": _of("sqrt"),
    "log": _of("ln"),
    "clip": lambda t: pc.min_element_wise(
        pc.max_element_wise(t.x, -1, skip_nulls=False), 2, skip_nulls=False
    ),
    "equal": _both("equal"),
    "not equal": _both("not_equal"),
    "less": _both("less"),
    "greater or equal": _both("greater_equal"),
    "less than a number": lambda t: pc.less(t.x, 1),
    "and": _logic("and_kleene"),
    "or": _logic("or_kleene"),
    "xor": _logic("xor"),
    "not": lambda t: pc.invert(t.b),
    "strict and": _logic("and_"),
    "strict or": _logic("or_"),
    "where": lambda t: pc.if_else(t.b, t.x, t.y),
    "where there": _both("coalesce"),
    "fill": lambda t: pc.fill_null(t.x, 1),
    "missing": _of("is_null"),
    "drop": _of("drop_null"),
    "filter": lambda t: t.x.filter(pa.array(t.keys < 2)),
    "take": lambda t: t.x.take(pa.array([0, len(t.x) - 1, 0])),
    "slice": lambda t: t.x.slice(1, 3),
    "reverse": lambda t: t.x[::-1],
    "concatenate": lambda t: pa.chunked_array([t.x, t.y]),
    "unique": lambda t: t.x.drop_null().unique().sort(),
    **{f"groups: {name}": _grouped(name) for name in ("sum", "mean", "min", "max")},
    "groups: count": _grouped("count", 0),
    **{f"scattered: {name}": _grouped(name) for name in ("sum", "mean", "min", "max")},
    "rows: min": _both("min_element_wise"),
    "rows: max": _both("max_element_wise"),
}


def _column(values: np.ndarray, mask: np.ndarray, cut: int) -> Any:
    longer = np.pad(values, (cut, 0), "edge"), np.pad(mask, (cut, 0), "edge")
    return pa.array(longer[0], mask=~longer[1]).slice(cut)


def _plain(found: Any) -> Any:
    if isinstance(found, pa.Scalar):
        value = np.asarray(0 if found.as_py() is None else found.as_py())
        return Masked(value.astype(found.type.to_pandas_dtype()), np.asarray(found.is_valid))
    array = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    there = array.is_valid().to_numpy(zero_copy_only=False)
    filled = array.fill_null(pa.scalar(False if pa.types.is_boolean(array.type) else 0).cast(array.type))
    return Masked(filled.to_numpy(zero_copy_only=False), there)


def cases() -> Iterator[Case]:
    """Each line on each table, on arrays that begin at their first number and on others."""
    for cut in (0, 3):
        column = partial(_column, cut=cut)
        for case in (
            *column_cases(THEIRS, column, _plain),
            *exchanged(column, _plain, mg.from_arrow, mg.interop.to_arrow),
        ):
            yield case._replace(name=f"{case.name}, cut" if cut else case.name)


SUITE = Suite("pyarrow", pa.__version__, cases)
