"""pandas: its nullable columns (``Float64``, ``Int64``, ``boolean``), whose missing values are ``pd.NA``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

POISONS = (np.nan, np.inf, -np.inf, 1e38)
GROUPS = 4
DTYPES = {"float64": "Float64", "float32": "Float32", "int64": "Int64", "bool": "boolean"}
#: Values and mask (True = specified).
Column = tuple[np.ndarray, np.ndarray]


class Table(NamedTuple):
    """Two columns of one dtype, a Boolean one, and the group of each row."""

    x: Any
    y: Any
    b: Any
    keys: Any


def real(x: Any) -> Any:
    """PyTorch has no mean of integers."""
    return x if x.dtype.is_floating_point else x.to(torch.float64)


def each(reduce: Callable[[Any], Any], least: int = 1) -> Callable[[Table], Any]:
    """One number for each group: unspecified where the group has fewer than ``least`` entries that are specified."""

    def grouped(t: Table) -> Any:
        nothing = mg.masked(torch.zeros(1, dtype=t.x.dtype), torch.zeros(1, dtype=torch.bool))
        parts = [torch.cat([t.x[t.keys == key], nothing]) for key in range(GROUPS)]
        return torch.stack([mg.masked(reduce(part), part.mask.sum() >= least) for part in parts])

    return grouped


def _by_scatter(t: Table, name: str) -> Any:
    empty = mg.masked(torch.zeros(GROUPS, dtype=t.x.dtype), torch.zeros(GROUPS, dtype=torch.bool))
    return empty.scatter_reduce(0, t.keys, t.x, name, include_self=False)


def _grouped(name: str) -> Callable[[Table], Any]:
    return lambda t: getattr(t.x.groupby(t.keys), name)(**_least(name)).reindex(range(GROUPS))


def _least(name: str) -> dict[str, int]:
    """A sum of nothing is 0, unless something is asked for."""
    return {"min_count": 1} if name == "sum" else {}


def _rows(name: str) -> Callable[[Table], Any]:
    return lambda t: getattr(pd.DataFrame({"x": t.x, "y": t.y}), name)(axis=1, **_least(name))


#: What pandas does, and how it is written here.
LINES: dict[str, tuple[Callable[[Table], Any], Callable[[Table], Any]]] = {
    "sum": (lambda t: t.x.sum(), lambda t: t.x.sum()),
    "prod": (lambda t: t.x.prod(), lambda t: t.x.prod()),
    "mean": (lambda t: t.x.mean(), lambda t: t.x.mean()),
    "var": (lambda t: t.x.var(), lambda t: t.x.var()),
    "std": (lambda t: t.x.std(), lambda t: t.x.std()),
    "real mean": (lambda t: t.x.mean(), lambda t: real(t.x).mean()),
    "real var": (lambda t: t.x.var(), lambda t: real(t.x).var()),
    "real std": (lambda t: t.x.std(), lambda t: real(t.x).std()),
    "real var, ddof 0": (lambda t: t.x.var(ddof=0), lambda t: real(t.x).var(correction=0)),
    "min": (lambda t: t.x.min(), lambda t: t.x.amin()),
    "max": (lambda t: t.x.max(), lambda t: t.x.amax()),
    "any": (lambda t: t.b.any(), lambda t: t.b.any()),
    "all": (lambda t: t.b.all(), lambda t: t.b.all()),
    "count": (lambda t: t.x.count(), lambda t: t.x.num_specified()),
    "median": (lambda t: t.x.median(), lambda t: real(t.x).quantile(0.5)),
    "quantile 0.25": (lambda t: t.x.astype("Float64").quantile(0.25), lambda t: real(t.x).quantile(0.25)),
    "quantile 0.9": (lambda t: t.x.astype("Float64").quantile(0.9), lambda t: real(t.x).quantile(0.9)),
    "quantile 0.3 nearest": (
        lambda t: t.x.astype("Float64").quantile(0.3, interpolation="nearest"),
        lambda t: real(t.x).quantile(0.3, interpolation="nearest"),
    ),
    "quantile 0.3 lower": (
        lambda t: t.x.astype("Float64").quantile(0.3, interpolation="lower"),
        lambda t: real(t.x).quantile(0.3, interpolation="lower"),
    ),
    "quantile 0.3 higher": (
        lambda t: t.x.astype("Float64").quantile(0.3, interpolation="higher"),
        lambda t: real(t.x).quantile(0.3, interpolation="higher"),
    ),
    "argmax": (lambda t: t.x.idxmax(), lambda t: t.x.argmax()),
    "argmin": (lambda t: t.x.idxmin(), lambda t: t.x.argmin()),
    "cov": (lambda t: t.x.cov(t.y), lambda t: torch.cov(torch.stack([real(t.x), real(t.y)]))[0, 1]),
    "corr": (lambda t: t.x.corr(t.y), lambda t: torch.corrcoef(torch.stack([real(t.x), real(t.y)]))[0, 1]),
    "sort": (lambda t: t.x.sort_values(), lambda t: t.x.sort().values),
    "sort descending": (
        lambda t: t.x.sort_values(ascending=False),
        lambda t: t.x.sort(descending=True).values,
    ),
    "largest": (
        lambda t: t.x.sort_values(ascending=False).head(3),
        lambda t: t.x.topk(min(3, len(t.x))).values,
    ),
    "cumsum": (lambda t: t.x.cumsum(), lambda t: t.x.cumsum(0)),
    "cumprod": (lambda t: t.x.cumprod(), lambda t: t.x.cumprod(0)),
    "cummax": (lambda t: t.x.cummax(), lambda t: t.x.cummax(0).values),
    "cummin": (lambda t: t.x.cummin(), lambda t: t.x.cummin(0).values),
    "diff": (lambda t: t.x.diff().iloc[1:], lambda t: t.x.diff()),
    "add": (lambda t: t.x + t.y, lambda t: t.x + t.y),
    "subtract": (lambda t: t.x - t.y, lambda t: t.x - t.y),
    "multiply": (lambda t: t.x * t.y, lambda t: t.x * t.y),
    "divide": (lambda t: t.x / t.y, lambda t: t.x / t.y),
    "floor divide": (lambda t: t.x // t.y, lambda t: t.x // t.y),
    "remainder": (lambda t: t.x % t.y, lambda t: t.x % t.y),
    "power": (lambda t: t.x**2, lambda t: t.x**2),
    "add a number": (lambda t: t.x + 2, lambda t: t.x + 2),
    "negative": (lambda t: -t.x, lambda t: -t.x),
    "absolute": (lambda t: t.x.abs(), lambda t: t.x.abs()),
    "exp": (lambda t: np.exp(t.x), lambda t: real(t.x).exp()),
    "sqrt": (lambda t: np.sqrt(t.x), lambda t: real(t.x).sqrt()),
    "log": (lambda t: np.log(t.x), lambda t: real(t.x).log()),
    "clip": (lambda t: t.x.clip(-1, 2), lambda t: t.x.clip(-1, 2)),
    "equal": (lambda t: t.x == t.y, lambda t: t.x == t.y),
    "not equal": (lambda t: t.x != t.y, lambda t: t.x != t.y),
    "less": (lambda t: t.x < t.y, lambda t: t.x < t.y),
    "greater or equal": (lambda t: t.x >= t.y, lambda t: t.x >= t.y),
    "less than a number": (lambda t: t.x < 1, lambda t: t.x < 1),
    "and": (lambda t: t.b & (t.x < t.y), lambda t: t.b & (t.x < t.y)),
    "or": (lambda t: t.b | (t.x < t.y), lambda t: t.b | (t.x < t.y)),
    "xor": (lambda t: t.b ^ (t.x < t.y), lambda t: t.b ^ (t.x < t.y)),
    "not": (lambda t: ~t.b, lambda t: ~t.b),
    "where": (lambda t: t.x.where(t.b, t.y), lambda t: torch.where(t.b, t.x, t.y)),
    "where there": (lambda t: t.x.combine_first(t.y), lambda t: torch.where(t.x.mask, t.x, t.y)),
    "fill": (lambda t: t.x.fillna(1), lambda t: t.x.filled(1)),
    "missing": (lambda t: t.x.isna(), lambda t: ~t.x.mask),
    "drop": (lambda t: t.x.dropna(), lambda t: t.x.compressed()),
    "filter": (lambda t: t.x[t.keys < 2], lambda t: t.x[t.keys < 2]),
    "take": (lambda t: t.x.iloc[[0, -1, 0]], lambda t: t.x[torch.tensor([0, -1, 0])]),
    "slice": (lambda t: t.x.iloc[1:4], lambda t: t.x[1:4]),
    "reverse": (lambda t: t.x.iloc[::-1], lambda t: t.x.flip(0)),
    "concatenate": (lambda t: pd.concat([t.x, t.y]), lambda t: torch.cat([t.x, t.y])),
    "unique": (
        lambda t: t.x.dropna().drop_duplicates().sort_values(),
        lambda t: torch.unique(t.x.compressed()),
    ),
    "groups: sum": (_grouped("sum"), each(lambda x: x.sum())),
    "groups: mean": (_grouped("mean"), each(lambda x: real(x).mean())),
    "groups: var": (_grouped("var"), each(lambda x: real(x).var(), least=2)),
    "groups: min": (_grouped("min"), each(lambda x: x.amin())),
    "groups: max": (_grouped("max"), each(lambda x: x.amax())),
    "groups: median": (_grouped("median"), each(lambda x: real(x).quantile(0.5))),
    "groups: count": (
        lambda t: t.x.groupby(t.keys).count().reindex(range(GROUPS), fill_value=0),
        lambda t: torch.stack([t.x[t.keys == key].mask.sum() for key in range(GROUPS)]),
    ),
    "scattered: sum": (_grouped("sum"), partial(_by_scatter, name="sum")),
    "scattered: mean": (_grouped("mean"), lambda t: _by_scatter(t._replace(x=real(t.x)), "mean")),
    "scattered: min": (_grouped("min"), partial(_by_scatter, name="amin")),
    "scattered: max": (_grouped("max"), partial(_by_scatter, name="amax")),
    "rows: sum": (_rows("sum"), lambda t: torch.stack([t.x, t.y]).sum(0)),
    "rows: mean": (_rows("mean"), lambda t: torch.stack([real(t.x), real(t.y)]).mean(0)),
    "rows: min": (_rows("min"), lambda t: torch.stack([t.x, t.y]).amin(0)),
    "rows: max": (_rows("max"), lambda t: torch.stack([t.x, t.y]).amax(0)),
}


def _data() -> Iterator[tuple[str, Table]]:
    draw = np.random.default_rng(0)
    for dtype in ("float64", "float32", "int64"):
        for size in (1, 8, 40):
            for label, share in (("whole", 0.0), ("some missing", 0.35), ("nothing", 1.0)):
                columns = []
                for _ in range(3):
                    values = (draw.standard_normal(size) * 4).astype(dtype)
                    columns.append(
                        (np.where(values == 0, 1, values).astype(dtype), draw.random(size) >= share)
                    )
                b = draw.random(size) < 0.5, columns[2][1]
                entries = ", one entry" if columns[0][1].sum() == 1 else ""
                yield (
                    f"{dtype} {size} {label}{entries}",
                    Table(*columns[:2], b, draw.integers(0, GROUPS, size)),
                )


def _mine(column: Column, poison: float) -> mg.MaskedTensor:
    values, mask = column
    if values.dtype.kind == "f":
        values = np.where(mask, values, np.asarray(poison, dtype=values.dtype))
    return mg.masked(torch.tensor(values), torch.tensor(mask))


def _column(values: np.ndarray, mask: np.ndarray) -> Any:
    return pd.Series(values).astype(DTYPES[str(values.dtype)]).mask(~mask)


def _plain(found: Any) -> Any:
    if found is pd.NA:
        return Masked(np.asarray(None), np.asarray(False))
    if not isinstance(found, pd.Series):
        return found
    there = found.notna().to_numpy()
    kind = found.dtype.numpy_dtype if hasattr(found.dtype, "numpy_dtype") else found.dtype
    return Masked(found.fillna(False if found.dtype == "boolean" else 0).to_numpy(dtype=kind), there)


def _theirs(run: Callable[[Table], Any], table: Table) -> Any:
    return _plain(run(Table(*(_column(*part) for part in table[:3]), table.keys)))


def _ours(run: Callable[[Table], Any], table: Table, poison: float) -> Any:
    return run(Table(*(_mine(column, poison) for column in table[:3]), torch.tensor(table.keys)))


def cases() -> Iterator[Case]:
    """Each line on each table; columns that are read, and written from one whose unspecified entries are poisoned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label, table in _data():
            for number, (name, (theirs, ours)) in enumerate(LINES.items()):
                poison = POISONS[number % len(POISONS)]
                yield Case(
                    f"{name} of {label}", partial(_theirs, theirs, table), partial(_ours, ours, table, poison)
                )
            for kind, part in (("numbers", table.x), ("Booleans", table.b)):
                theirs = partial(lambda part: _plain(_column(*part)), part)
                yield Case(
                    f"read {kind} of {label}",
                    theirs,
                    partial(lambda part: mg.from_pandas(_column(*part)), part),
                )
                for poison in POISONS:
                    written = partial(
                        lambda *given: _plain(mg.interop.to_pandas(_mine(*given))), part, poison
                    )
                    yield Case(f"write {kind} of {label} beside {poison}", theirs, written)


SUITE = Suite("pandas", pd.__version__, cases)
