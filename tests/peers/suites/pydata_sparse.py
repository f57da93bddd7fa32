"""pydata/sparse: COO of one to three dimensions, of which entries that are not stored are 0 in the peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import sparse
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

Function = Callable[..., Any]
Pair = tuple[Function, Function]

SHAPES = ((7,), (4, 6), (3, 4, 5), (2, 5))

ONE: dict[str, Pair] = {
    **{
        name: (getattr(np, name), getattr(torch, ours))
        for name, ours in {
            "sin": "sin", "tan": "tan", "tanh": "tanh", "sinh": "sinh", "arctan": "atan", "arcsinh": "asinh",
            "expm1": "expm1", "sign": "sign", "square": "square",
            "negative": "neg", "abs": "abs", "conj": "conj", "deg2rad": "deg2rad",
        }.items()
    },
    "times 3": (lambda a: a * 3, lambda x: x * 3),
    "divided by 4": (lambda a: a / 4, lambda x: x / 4),
    "cube": (lambda a: a**3, lambda x: x**3),
    "clip": (lambda a: a.clip(-0.5, 0.5), lambda x: x.clip(-0.5, 0.5)),
    "float32": (lambda a: a.astype(np.float32), lambda x: x.float()),
    "sum": (lambda a: a.sum(), lambda x: x.sum()),
    "stored": (lambda a: a.nnz, lambda x: x.num_specified()),
    "transpose": (lambda a: a.transpose(), lambda x: x.permute(*range(x.ndim - 1, -1, -1))),
    "flattened": (lambda a: a.reshape(-1), lambda x: x.flatten()),
    "first": (lambda a: a[:1], lambda x: x[:1]),
    "every other": (lambda a: a[::2], lambda x: x[::2]),
    "last": (lambda a: a[..., 1:], lambda x: x[..., 1:]),
    "by numbers": (lambda a: a[[0, 1]], lambda x: x[torch.tensor([0, 1])]),
    "with an axis": (lambda a: a[None], lambda x: x.unsqueeze(0)),
    "backwards": (lambda a: sparse.flip(a, axis=0), lambda x: x.flip(0)),
    "rolled": (lambda a: sparse.roll(a, 1, axis=0), lambda x: x.roll(1, 0)),
    "dense": (lambda a: a.todense(), lambda x: x.filled(0.0)),
    "joined": (lambda a: sparse.concatenate([a, a * 2]), lambda x: torch.cat([x, x * 2])),
    "stacked": (lambda a: sparse.stack([a, a * 2]), lambda x: torch.stack([x, x * 2])),
    "times a dense one": (
        lambda a: a * np.arange(1.0, a.shape[-1] + 1),
        lambda x: x * torch.arange(1.0, x.shape[-1] + 1, dtype=torch.float64),
    ),
}  # fmt: skip
TWO: dict[str, Pair] = {
    "product by entry": (lambda a, b: a * b, lambda x, y: x * y),
    "sum of two": (lambda a, b: a + b, lambda x, y: x + y),
    "difference of two": (lambda a, b: a - b, lambda x, y: x - y),
    "maximum of two": (np.maximum, torch.maximum),
    "minimum of two": (np.minimum, torch.minimum),
    "one above the other": (lambda a, b: sparse.concatenate([a, b]), lambda x, y: torch.cat([x, y])),
    "inner": (lambda a, b: (a * b).sum(), lambda x, y: (x * y).sum()),
}
ALONG: dict[str, Pair] = {
    "sum along": (lambda a, d: a.sum(axis=d), lambda x, d: x.sum(d)),
    "mean along": (lambda a, d: a.mean(axis=d), lambda x, d: x.mean(d)),
    "mean of stored along": (
        lambda a, d: a.sum(axis=d).todense() / (a != 0).sum(axis=d).todense(),
        lambda x, d: x.mean(d),
    ),
    "largest magnitude along": (lambda a, d: abs(a).max(axis=d), lambda x, d: x.abs().amax(d)),
    "sum of squares along": (
        lambda a, d: (a * a).sum(axis=d, keepdims=True),
        lambda x, d: (x * x).sum(d, keepdim=True),
    ),
}
MATRICES: dict[str, Pair] = {
    "matrix product": (lambda a, b: a @ b.T, lambda x, y: x @ y.T),
    "product with a dense matrix": (
        lambda a, _: a @ np.cos(np.arange(a.shape[-1] * 3.0)).reshape(-1, 3),
        lambda x, _: x @ torch.arange(x.shape[-1] * 3.0, dtype=torch.float64).cos().reshape(-1, 3),
    ),
    "einsum": (lambda a, b: sparse.einsum("ij,kj->ik", a, b), lambda x, y: x @ y.T),
}


def _stored(found: Any) -> Any:
    if not isinstance(found, sparse.SparseArray):
        values = np.asarray(found)
        return Masked(np.nan_to_num(values), ~np.isnan(values))
    values = np.asarray(found.todense())  # it stores some zeros that it computes, and not others
    return Masked(values, (values != 0) | (values.ndim == 0))


def _pair(draw: np.random.Generator, shape: tuple[int, ...], empty: bool) -> Iterator[tuple[Any, Any]]:
    for _ in range(2):
        values = draw.uniform(0.1, 0.9, shape) * draw.choice((-1, 1), shape)
        mask = draw.random(shape) < (0.3 if empty else 0.8)
        if empty:
            mask[shape[0] // 2 :] = False
        coordinates = np.argwhere(mask).T
        theirs = sparse.COO(coordinates, values[mask], shape=shape)
        ours = torch.sparse_coo_tensor(torch.tensor(coordinates), torch.tensor(values[mask]), shape)
        yield theirs, mg.from_sparse(ours.coalesce())


def cases() -> Iterator[Case]:
    """Each operation on COO arrays, with and without rows that store nothing; along each dimension."""
    draw = np.random.default_rng(11)
    for round_number in range(3):
        for shape in SHAPES:
            for empty in (False, True):
                (a, x), (b, y) = _pair(draw, shape, empty)
                label = f"{shape} {round_number}{' empty rows' if empty else ''}"
                lines = [(name, pair, (a,), (x,)) for name, pair in ONE.items()]
                lines += [(name, pair, (a, b), (x, y)) for name, pair in TWO.items()]
                lines += [(name, pair, (a, b), (x, y)) for name, pair in MATRICES.items() if len(shape) == 2]
                lines += [
                    (f"{name} {d}", pair, (a, d), (x, d))
                    for name, pair in ALONG.items()
                    for d in range(len(shape))
                ]
                for name, (theirs, ours), given, own in lines:
                    read = partial(lambda f, given: _stored(f(*given)), theirs, given)
                    yield Case(f"{name} {label}", read, partial(ours, *own))


SUITE = Suite("pydata sparse", sparse.__version__, cases)
