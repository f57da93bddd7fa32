"""xarray: NaN is a hole, which ``skipna=True`` leaves out; ours come from ``mg.from_nan``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

Function = Callable[..., Any]
Pair = tuple[Function, Function]

SHAPES = {"matrix": (4, 5), "row": (1, 6), "cube": (3, 4, 2), "wide": (2, 9)}
DIMS = "abc"


def _weights(a: Any, d: str) -> Any:
    return xr.DataArray(np.linspace(0.5, 1.5, a.sizes[d]), dims=d)


def _ours_weights(x: Any, k: int) -> torch.Tensor:
    shape = [1] * x.ndim
    shape[k] = x.shape[k]
    return torch.linspace(0.5, 1.5, x.shape[k], dtype=torch.float64).reshape(shape)


def _complete(x: Any, k: int) -> Any:
    """The slices of a dimension that have no hole."""
    others = [d for d in range(x.ndim) if d != k]
    return x.index_select(k, x.mask.all(dim=others).nonzero()[:, 0])


def _groups(a: Any, d: str) -> Any:
    return xr.DataArray(np.arange(a.sizes[d]) % 2, dims=d, name="group")


def _grouped(x: Any, k: int) -> Any:
    rows = x.movedim(k, 0)
    means = [rows[i::2].mean(0) for i in range(min(2, len(rows)))]
    return torch.stack(means).movedim(0, k)


REDUCTIONS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "sum": ("sum", "sum", {}, {}),
    "sum min_count=1": ("sum", "sum", {"min_count": 1}, {}),
    "prod min_count=1": ("prod", "prod", {"min_count": 1}, {}),
    "mean": ("mean", "mean", {}, {}),
    "max": ("max", "amax", {}, {}),
    "min": ("min", "amin", {}, {}),
    "var ddof=1": ("var", "var", {"ddof": 1}, {"correction": 1}),
    "var ddof=0": ("var", "var", {"ddof": 0}, {"correction": 0}),
    "std ddof=1": ("std", "std", {"ddof": 1}, {"correction": 1}),
    "std ddof=0": ("std", "std", {"ddof": 0}, {"correction": 0}),
    "argmax": ("argmax", "argmax", {}, {}),
    "argmin": ("argmin", "argmin", {}, {}),
}
QUANTILES = ("linear", "lower", "higher", "midpoint", "nearest")

#: Along one dimension, which stays; named in the peer, numbered in ours.
ALONG: dict[str, Pair] = {
    "cumsum": (lambda a, d: a.cumsum(d).where(a.notnull()), lambda x, k: x.cumsum(k)),
    "cumprod": (lambda a, d: a.cumprod(d).where(a.notnull()), lambda x, k: x.cumprod(k)),
    "rank": (
        lambda a, d: a.rank(d),
        lambda x, k: (x.unsqueeze(k + 1) >= x.unsqueeze(k)).sum(k + 1).double(),
    ),
    "sorted": (
        lambda a, d: xr.apply_ufunc(np.sort, a, kwargs={"axis": a.dims.index(d)}),
        lambda x, k: x.sort(k).values,
    ),
    "difference": (lambda a, d: a.diff(d), lambda x, k: x.diff(dim=k)),
    "rolled": (lambda a, d: a.roll({d: 2}), lambda x, k: x.roll(2, k)),
    "backwards": (lambda a, d: a.isel({d: slice(None, None, -1)}), lambda x, k: x.flip(k)),
    "every other": (
        lambda a, d: a.isel({d: slice(None, None, 2)}),
        lambda x, k: x[(slice(None),) * k + (slice(None, None, 2),)],
    ),
    "first": (lambda a, d: a.isel({d: 0}), lambda x, k: x.select(k, 0)),
    "by numbers": (
        lambda a, d: a.isel({d: [0, -1, 0]}),
        lambda x, k: x.index_select(k, torch.tensor([0, x.shape[k] - 1, 0])),
    ),
    "count": (lambda a, d: a.count(d), lambda x, k: x.mask.sum(k)),
    "anomaly": (lambda a, d: a - a.mean(d), lambda x, k: x - x.mean(k, keepdim=True)),
    "standardised": (
        lambda a, d: (a - a.mean(d)) / a.std(d),
        lambda x, k: (x - x.mean(k, keepdim=True)) / x.std(k, correction=0, keepdim=True),
    ),
    "joined": (lambda a, d: xr.concat([a, a * 2], d), lambda x, k: torch.cat([x, x * 2], k)),
    "weighted sum": (
        lambda a, d: a.weighted(_weights(a, d)).sum(d),
        lambda x, k: (x * _ours_weights(x, k)).sum(k).filled(0),
    ),
    "weighted mean": (
        lambda a, d: a.weighted(_weights(a, d)).mean(d),
        lambda x, k: (x * _ours_weights(x, k)).sum(k) / (torch.ones_like(x) * _ours_weights(x, k)).sum(k),
    ),
    "dropped": (lambda a, d: a.dropna(d), _complete),
    "product with itself": (
        lambda a, d: xr.dot(a.fillna(0), a.fillna(0), dim=d),
        lambda x, k: (x * x).sum(k).filled(0),
    ),
    "groups": (lambda a, d: a.groupby(_groups(a, d)).mean(), _grouped),
}
ELEMENTWISE: dict[str, Pair] = {
    "abs": (abs, abs),
    "negative": (lambda a: -a, lambda x: -x),
    "exp": (np.exp, torch.exp),
    "sin": (np.sin, torch.sin),
    "tanh": (np.tanh, torch.tanh),
    "floor": (np.floor, torch.floor),
    "square": (np.square, torch.square),
    "sign": (np.sign, torch.sign),
    "round": (lambda a: a.round(), torch.round),
    "sqrt of abs": (lambda a: np.sqrt(abs(a)), lambda x: x.abs().sqrt()),
    "clip": (lambda a: a.clip(-1, 1), lambda x: x.clip(-1, 1)),
    "plus 2": (lambda a: a + 2, lambda x: x + 2),
    "3 minus": (lambda a: 3 - a, lambda x: 3 - x),
    "cube": (lambda a: a**3, lambda x: x**3),
    "modulo": (lambda a: a % 0.7, lambda x: x % 0.7),
    "fillna": (lambda a: a.fillna(7.0), lambda x: x.filled(7.0)),
    "where": (lambda a: a.where(a > 0), lambda x: mg.masked(x.filled(0), (x > 0).filled(False))),
    "where with other": (
        lambda a: a.where(a > 0, -1.0),
        lambda x: torch.where((x > 0).filled(False), x, -1.0),
    ),
    "above 0": (lambda a: (a > 0).where(a.notnull()) == 1, lambda x: (x > 0).filled(False)),
    "notnull": (lambda a: a.notnull(), lambda x: x.mask),
    "transpose": (lambda a: a.transpose(*a.dims[::-1]), lambda x: x.permute(*range(x.ndim - 1, -1, -1))),
    "stacked": (lambda a: a.stack(z=a.dims), lambda x: x.flatten()),
    "expanded": (lambda a: a.expand_dims(z=2), lambda x: x.expand(2, *x.shape)),
    "float32": (lambda a: a.astype(np.float32), lambda x: x.float()),
}
TWO: dict[str, Pair] = {
    "add": (lambda a, b: a + b, lambda x, y: x + y),
    "multiply": (lambda a, b: a * b, lambda x, y: x * y),
    "divide": (lambda a, b: a / b, lambda x, y: x / y),
    "maximum": (np.maximum, torch.maximum),
    "arctan2": (np.arctan2, torch.atan2),
    "combine_first": (lambda a, b: a.combine_first(b), lambda x, y: torch.where(x.mask, x, y)),
    "where of two": (
        lambda a, b: xr.where(a > 0, a, b),
        lambda x, y: torch.where((x > 0).filled(False), x, y),
    ),
    "stacked": (lambda a, b: xr.concat([a, b], "z"), lambda x, y: torch.stack([x, y])),
    "dot": (lambda a, b: xr.dot(a.fillna(0), b.fillna(0)), lambda x, y: (x * y).sum()),
    "mse": (lambda a, b: ((a - b) ** 2).mean(), torch.nn.functional.mse_loss),
    "l1": (lambda a, b: abs(a - b).mean(), torch.nn.functional.l1_loss),
    "row less a plain one": (lambda a, b: a - b.fillna(0).isel(a=0), lambda x, y: x - y.filled(0)[0]),
}
PLAIN = {
    "fillna",
    "notnull",
    "above 0",
    "count",
    "weighted sum",
    "product with itself",
    "dot",
    "argmax",
    "argmin",
}


def _read(found: Any, plain: bool) -> Any:
    """NaN as a hole, but of what the peer gives without."""
    values = np.asarray(found)
    if plain or values.dtype.kind != "f" or not values.ndim:
        return Masked(values, np.ones(values.shape, dtype=bool))
    return Masked(np.nan_to_num(values), ~np.isnan(values))


def _data() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(5)
    for name, shape in SHAPES.items():
        for share in (0.0, 0.3, 0.6):
            a, b = (np.where(draw.random(shape) < share, np.nan, draw.standard_normal(shape)) for _ in "ab")
            yield f"{name} {share}", a, b


def _case(name: str, label: str, pair: Pair, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> Case:
    plain = name.split(" axis")[0] in PLAIN
    return Case(
        f"{name} {label}",
        partial(lambda f, a, p: _read(f(*a), p), pair[0], theirs, plain),
        partial(pair[1], *ours),
    )


def _reduction(name: str, dim: str | None, keep: bool) -> Pair:
    theirs, ours, options, own = REDUCTIONS[name]

    def of_theirs(a: Any) -> Any:
        given = {} if theirs.startswith("arg") else {"keepdims": keep}
        return getattr(a, theirs)(dim, skipna=True, **options, **given)

    def of_ours(x: Any) -> Any:
        if dim is None:
            return getattr(x, ours)(**own)
        return getattr(x, ours)(DIMS.index(dim), keepdim=keep, **own)

    return of_theirs, of_ours


def cases() -> Iterator[Case]:
    """Each operation on arrays of several shapes and shares of holes, along each dimension."""
    for label, one, other in _data():
        dims = DIMS[: one.ndim]
        a, b = (xr.DataArray(values, dims=list(dims)) for values in (one, other))
        x, y = (mg.from_nan(torch.tensor(values)) for values in (one, other))
        for dim in (*dims, None):
            gone = np.isnan(one).all(axis=None if dim is None else dims.index(dim)).any()
            few = (~np.isnan(one)).sum(axis=None if dim is None else dims.index(dim)).min() < 2
            where = f"{label} dim={dim}{' nothing left' if gone else ' few left' if few else ''}"
            for name in REDUCTIONS:
                for keep in (False, True) if dim and not name.startswith("arg") else (False,):
                    yield _case(name, f"{where} keepdims={keep}", _reduction(name, dim, keep), (a,), (x,))
            if dim is None:
                continue
            for name, pair in ALONG.items():
                yield _case(name, where, pair, (a, dim), (x, dims.index(dim)))
            for method in QUANTILES:
                theirs = partial(lambda m, a, d: a.quantile(0.3, d, method=m, skipna=True), method)
                ours = partial(lambda m, x, k: x.quantile(0.3, k, interpolation=m), method)
                yield _case(f"quantile {method}", where, (theirs, ours), (a, dim), (x, dims.index(dim)))
        for name, pair in ELEMENTWISE.items():
            yield _case(name, label, pair, (a,), (x,))
        for name, pair in TWO.items():
            yield _case(name, label, pair, (a, b), (x, y))


SUITE = Suite("xarray", xr.__version__, cases)
