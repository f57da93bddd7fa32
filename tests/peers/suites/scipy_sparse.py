"""scipy.sparse: what is stored is specified; what is not stored is unspecified in ours, and 0 in the peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy
import scipy.sparse as sp
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

Function = Callable[..., Any]
Pair = tuple[Function, Function]

FORMATS = ("coo", "csr", "csc", "bsr")
SHAPES = ((4, 6), (2, 5), (6, 2), (4, 4))

#: Functions with f(0) = 0, which the peer takes of what is stored.
UNARY = (
    "sin", "tan", "arcsin", "arctan", "sinh", "arcsinh", "tanh", "arctanh", "sign", "floor", "ceil", "trunc", "rint",
    "expm1", "log1p", "sqrt", "deg2rad", "rad2deg",
)  # fmt: skip
TORCHS = {"arcsin": "asin", "arctan": "atan", "arcsinh": "asinh", "arctanh": "atanh", "rint": "round"}
UNIT = {"arcsin", "arctanh", "log1p", "sqrt"}

ONE: dict[str, Pair] = {
    "abs": (abs, abs),
    "negative": (lambda a: -a, lambda x: -x),
    "times 3": (lambda a: a * 3.0, lambda x: x * 3.0),
    "divided by 3": (lambda a: a / 3.0, lambda x: x / 3.0),
    "power 2": (lambda a: a.power(2), lambda x: x**2),
    "conj": (lambda a: a.conj(), lambda x: x.conj()),
    "copy": (lambda a: a.copy(), lambda x: x.clone()),
    "float32": (lambda a: a.astype(np.float32), lambda x: x.float()),
    "int64": (lambda a: (a * 10).astype(np.int64), lambda x: (x * 10).long()),
    "transpose": (lambda a: a.T, lambda x: x.T),
    "sum of all": (lambda a: a.sum(), lambda x: x.sum()),
    "largest of all": (lambda a: a.max(explicit=True), lambda x: x.amax()),
    "smallest of all": (lambda a: a.min(explicit=True), lambda x: x.amin()),
    "stored": (lambda a: a.nnz, lambda x: x.num_specified()),
    "sum along 0": (lambda a: a.sum(axis=0), lambda x: x.sum(0)),
    "sum along 1": (lambda a: a.sum(axis=1), lambda x: x.sum(1)),
    "mean of all": (lambda a: a.mean(), lambda x: x.mean()),
    "mean along 0": (lambda a: a.mean(axis=0), lambda x: x.mean(0)),
    "mean along 1": (lambda a: a.mean(axis=1), lambda x: x.mean(1)),
    "mean of stored": (
        lambda a: a.data.mean() if a.format != "bsr" else a.tocsr().data.mean(),
        lambda x: x.mean(),
    ),
    "largest along 0": (lambda a: a.max(axis=0, explicit=True), lambda x: x.amax(0)),
    "largest along 1": (lambda a: a.max(axis=1, explicit=True), lambda x: x.amax(1)),
    "smallest along 1": (lambda a: a.min(axis=1, explicit=True), lambda x: x.amin(1)),
    "place of the largest along 1": (lambda a: a.argmax(axis=1, explicit=True), lambda x: x.argmax(1)),
    "stored along 1": (lambda a: a.count_nonzero(axis=1), lambda x: x.mask.sum(1)),
    "trace": (lambda a: a.trace(), lambda x: x.trace()),
    "diagonal": (lambda a: a.diagonal(), lambda x: x.diagonal()),
    "norm": (sp.linalg.norm, lambda x: x.norm()),
    "norm along 1": (lambda a: sp.linalg.norm(a, axis=1), lambda x: x.norm(dim=1)),
    "lower triangle": (sp.tril, lambda x: x.tril()),
    "upper triangle": (lambda a: sp.triu(a, 1), lambda x: x.triu(1)),
    "first row": (lambda a: a[[0]], lambda x: x[:1]),
    "two columns": (lambda a: a[:, :2], lambda x: x[:, :2]),
    "every other row": (lambda a: a[::2], lambda x: x[::2]),
    "last columns": (lambda a: a[:, 1:], lambda x: x[:, 1:]),
    "rows by number": (lambda a: a[[0, -1]], lambda x: x[torch.tensor([0, -1])]),
    "columns by number": (lambda a: a[:, [1, 0]], lambda x: x[:, torch.tensor([1, 0])]),
    "rows by a mask": (
        lambda a: a[np.arange(a.shape[0]) % 2 == 0],
        lambda x: x[torch.arange(x.shape[0]) % 2 == 0],
    ),
    "reshaped": (lambda a: a.reshape(a.shape[0] * a.shape[1] // 2, 2), lambda x: x.reshape(-1, 2)),
    "dense": (lambda a: a.toarray(), lambda x: x.filled(0.0)),
    "above 0": (lambda a: a > 0, lambda x: x > 0),
    "times a vector": (
        lambda a: a.multiply(np.arange(1.0, a.shape[1] + 1)),
        lambda x: x * torch.arange(1.0, x.shape[1] + 1, dtype=torch.float64),
    ),
    "times a column": (
        lambda a: a.multiply(np.arange(1.0, a.shape[0] + 1)[:, None]),
        lambda x: x * torch.arange(1.0, x.shape[0] + 1, dtype=torch.float64)[:, None],
    ),
}
TWO: dict[str, Pair] = {
    "product by entry": (lambda a, b: a.multiply(b), lambda x, y: x * y),
    "sum of two": (lambda a, b: a + b, lambda x, y: x + y),
    "difference of two": (lambda a, b: a - b, lambda x, y: x - y),
    "maximum of two": (lambda a, b: a.maximum(b), torch.maximum),
    "minimum of two": (lambda a, b: a.minimum(b), torch.minimum),
    "sum with the same": (lambda a, _: a + a * 0.5, lambda x, _: x + x * 0.5),
    "maximum with the same": (lambda a, _: a.maximum(a * 0.5), lambda x, _: torch.maximum(x, x * 0.5)),
    "quotient with the same": (lambda a, _: a.multiply(a.power(-1)), lambda x, _: x / x),
    "matrix product": (lambda a, b: a @ b.T, lambda x, y: x @ y.T),
    "gram matrix": (lambda a, _: a.T @ a, lambda x, _: x.T @ x),
    "product with a dense matrix": (
        lambda a, _: a @ np.cos(np.arange(a.shape[1] * 3.0)).reshape(-1, 3),
        lambda x, _: x @ torch.arange(x.shape[1] * 3.0, dtype=torch.float64).cos().reshape(-1, 3),
    ),
    "product with a vector": (
        lambda a, _: a @ np.cos(np.arange(float(a.shape[1]))),
        lambda x, _: x @ torch.arange(float(x.shape[1]), dtype=torch.float64).cos(),
    ),
    "one above the other": (lambda a, b: sp.vstack([a, b]), lambda x, y: torch.cat([x, y])),
    "side by side": (lambda a, b: sp.hstack([a, b]), lambda x, y: torch.cat([x, y], 1)),
    "kron": (sp.kron, torch.kron),
}


def _stored(found: Any) -> Any:
    """What a sparse result stores, as values and a mask; dense ones as they are."""
    if not sp.issparse(found):
        return np.ma.asarray(found)
    coo = found.tocoo()
    coo.sum_duplicates()
    values, mask = np.zeros(coo.shape, dtype=coo.dtype), np.zeros(coo.shape, dtype=bool)
    values[coo.coords], mask[coo.coords] = coo.data, True
    return Masked(values, mask)


def _matrix(draw: np.random.Generator, shape: tuple[int, int], kind: str, empty: bool) -> Any:
    """Values between 0.1 and 0.9 with signs; an empty row in the middle, or none without entries."""
    values = draw.uniform(0.1, 0.9, shape) * draw.choice((-1, 1), shape)
    mask = draw.random(shape) < 0.5
    if kind == "bsr":
        mask = np.repeat(np.repeat(mask[::2, ::2], 2, 0), 2, 1)[: shape[0], : shape[1]]
    if empty:
        mask[shape[0] // 2 :] = False
        mask[0, 0] = True
    else:
        mask[np.arange(shape[0]), np.arange(shape[0]) % shape[1]] = True
        mask[np.arange(shape[1]) % shape[0], np.arange(shape[1])] = True
    dense = np.where(mask, values, 0)
    return sp.bsr_array(dense, blocksize=(1, 1)) if kind == "bsr" else sp.coo_array(dense).asformat(kind)


def _theirs(operation: Function, matrices: list[Any]) -> Any:
    try:
        return _stored(operation(*matrices))
    except NotImplementedError:  # BSR has no slices
        return _stored(operation(*(matrix.tocsr() for matrix in matrices)))


def _case(name: str, label: str, pair: Pair, theirs: list[Any], ours: list[Any]) -> Case:
    return Case(f"{name} {label}", partial(_theirs, pair[0], theirs), partial(pair[1], *ours))


def cases() -> Iterator[Case]:
    """Each operation on each format, with and without empty rows; ours in the layout of the same name."""
    draw = np.random.default_rng(3)
    for kind in FORMATS:
        for shape in SHAPES:
            for empty in (False, True):
                pair = [_matrix(draw, shape, kind, empty) for _ in range(2)]
                ours = [mg.from_scipy(matrix) for matrix in pair]
                label = f"{kind} {shape}{' empty rows' if empty else ''}"
                for name in UNARY if not empty else ():
                    root = name in UNIT
                    theirs_of = partial(lambda n, r, a: getattr(abs(a) if r else a, n)(), name, root)
                    ours_of = partial(
                        lambda n, r, x: getattr(torch, n)(x.abs() if r else x), TORCHS.get(name, name), root
                    )
                    yield _case(name, label, (theirs_of, ours_of), pair[:1], ours[:1])
                for name, both in ONE.items():
                    yield _case(name, label, both, pair[:1], ours[:1])
                for name, both in TWO.items():
                    yield _case(name, label, both, pair, ours)


SUITE = Suite("scipy.sparse", scipy.__version__, cases)
