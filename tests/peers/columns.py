"""What packages for tables do with a column that has missing values, and how it is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked

POISONS = (np.nan, np.inf, -np.inf, 1e38)
GROUPS = 4
#: The three parts of a column that are given to :func:`column_cases`: values, mask (True = specified).
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


#: The same words for all packages; a package leaves out what it does not have.
OURS: Mapping[str, Callable[[Table], Any]] = {
    "sum": lambda t: t.x.sum(),
    "prod": lambda t: t.x.prod(),
    "mean": lambda t: t.x.mean(),
    "var": lambda t: t.x.var(),
    "std": lambda t: t.x.std(),
    "real mean": lambda t: real(t.x).mean(),
    "real var": lambda t: real(t.x).var(),
    "real std": lambda t: real(t.x).std(),
    "real var, ddof 0": lambda t: real(t.x).var(correction=0),
    "min": lambda t: t.x.amin(),
    "max": lambda t: t.x.amax(),
    "any": lambda t: t.b.any(),
    "all": lambda t: t.b.all(),
    "count": lambda t: t.x.num_specified(),
    "median": lambda t: real(t.x).quantile(0.5),
    "quantile 0.25": lambda t: real(t.x).quantile(0.25),
    "quantile 0.9": lambda t: real(t.x).quantile(0.9),
    "quantile 0.3 nearest": lambda t: real(t.x).quantile(0.3, interpolation="nearest"),
    "quantile 0.3 lower": lambda t: real(t.x).quantile(0.3, interpolation="lower"),
    "quantile 0.3 higher": lambda t: real(t.x).quantile(0.3, interpolation="higher"),
    "argmax": lambda t: t.x.argmax(),
    "argmin": lambda t: t.x.argmin(),
    "cov": lambda t: torch.cov(torch.stack([real(t.x), real(t.y)]))[0, 1],
    "corr": lambda t: torch.corrcoef(torch.stack([real(t.x), real(t.y)]))[0, 1],
    "sort": lambda t: t.x.sort().values,
    "sort descending": lambda t: t.x.sort(descending=True).values,
    "largest": lambda t: t.x.topk(min(3, len(t.x))).values,
    "cumsum": lambda t: t.x.cumsum(0),
    "cumprod": lambda t: t.x.cumprod(0),
    "cummax": lambda t: t.x.cummax(0).values,
    "cummin": lambda t: t.x.cummin(0).values,
    "diff": lambda t: t.x.diff(),
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
    "exp": lambda t: real(t.x).exp(),
    "sqrt": lambda t: real(t.x).sqrt(),
    "log": lambda t: real(t.x).log(),
    "clip": lambda t: t.x.clip(-1, 2),
    "equal": lambda t: t.x == t.y,
    "not equal": lambda t: t.x != t.y,
    "less": lambda t: t.x < t.y,
    "greater or equal": lambda t: t.x >= t.y,
    "less than a number": lambda t: t.x < 1,
    "and": lambda t: t.b & (t.x < t.y),
    "or": lambda t: t.b | (t.x < t.y),
    "xor": lambda t: t.b ^ (t.x < t.y),
    "strict and": lambda t: t.b & (t.x < t.y),
    "strict or": lambda t: t.b | (t.x < t.y),
    "not": lambda t: ~t.b,
    "where": lambda t: torch.where(t.b, t.x, t.y),
    "where there": lambda t: torch.where(t.x.mask, t.x, t.y),
    "fill": lambda t: t.x.filled(1),
    "missing": lambda t: ~t.x.mask,
    "drop": lambda t: t.x.compressed(),
    "filter": lambda t: t.x[t.keys < 2],
    "take": lambda t: t.x[torch.tensor([0, -1, 0])],
    "slice": lambda t: t.x[1:4],
    "reverse": lambda t: t.x.flip(0),
    "concatenate": lambda t: torch.cat([t.x, t.y]),
    "unique": lambda t: torch.unique(t.x.compressed()),
    "groups: sum": each(lambda x: x.sum()),
    "groups: mean": each(lambda x: real(x).mean()),
    "groups: var": each(lambda x: real(x).var(), least=2),
    "groups: min": each(lambda x: x.amin()),
    "groups: max": each(lambda x: x.amax()),
    "groups: median": each(lambda x: real(x).quantile(0.5)),
    "groups: count": lambda t: torch.stack([t.x[t.keys == key].mask.sum() for key in range(GROUPS)]),
    "scattered: sum": partial(_by_scatter, name="sum"),
    "scattered: mean": lambda t: _by_scatter(t._replace(x=real(t.x)), "mean"),
    "scattered: min": partial(_by_scatter, name="amin"),
    "scattered: max": partial(_by_scatter, name="amax"),
    "rows: sum": lambda t: torch.stack([t.x, t.y]).sum(0),
    "rows: mean": lambda t: torch.stack([real(t.x), real(t.y)]).mean(0),
    "rows: min": lambda t: torch.stack([t.x, t.y]).amin(0),
    "rows: max": lambda t: torch.stack([t.x, t.y]).amax(0),
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


def _ours(name: str, table: Table, poison: float) -> Any:
    columns = [_mine(column, poison) for column in table[:3]]
    return OURS[name](Table(*columns, torch.tensor(table.keys)))


def _theirs(
    run: Callable[[Table], Any], column: Callable[..., Any], plain: Callable[[Any], Any], table: Table
) -> Any:
    return plain(run(Table(*(column(*part) for part in table[:3]), table.keys)))


def missing() -> Masked:
    """A missing scalar, of whatever dtype."""
    return Masked(np.asarray(None), np.asarray(False))


def column_cases(
    theirs: Mapping[str, Callable[[Table], Any]],
    column: Callable[[np.ndarray, np.ndarray], Any],
    plain: Callable[[Any], Any],
) -> Iterator[Case]:
    """Each line of a package on each table; ``column`` makes its columns, ``plain`` reads its results."""
    unknown = theirs.keys() - OURS.keys()
    assert not unknown, unknown
    for label, table in _data():
        for number, (name, run) in enumerate(theirs.items()):
            mine = partial(_ours, name, table, POISONS[number % len(POISONS)])
            yield Case(f"{name} of {label}", partial(_theirs, run, column, plain, table), mine)


def exchanged(
    column: Callable[[np.ndarray, np.ndarray], Any],
    plain: Callable[[Any], Any],
    read: Callable[[Any], mg.MaskedTensor],
    write: Callable[[mg.MaskedTensor], Any],
) -> Iterator[Case]:
    """Columns that are read into a MaskedTensor, and written from one whose unspecified entries are poisoned."""
    for label, table in _data():
        for kind, part in (("numbers", table.x), ("Booleans", table.b)):
            native = partial(column, *part)
            theirs = _then(plain, native)
            yield Case(f"read {kind} of {label}", theirs, _then(read, native))
            for poison in POISONS:
                written = _then(plain, _then(write, partial(_mine, part, poison)))
                yield Case(f"write {kind} of {label} beside {poison}", theirs, written)


def _then(second: Callable[[Any], Any], first: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: second(first())
