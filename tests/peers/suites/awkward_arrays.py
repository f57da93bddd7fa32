"""awkward: flat arrays with ``None``; lists of lists beside a jagged batch, or a Boolean mask where they have holes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import awkward as ak
import numpy as np
import torch
from torch import Tensor

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

REDUCTIONS = ("sum", "prod", "min", "max", "mean", "any", "all", "count")
OURS = {"min": "amin", "max": "amax", "count": "num_specified"}

#: Of two levels: along axis 1, and over all.
ALONG = ("sum", "prod", "min", "max", "mean", "any", "all", "var", "std", "argmin", "argmax")
ELEMENTWISE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "abs": (np.abs, torch.abs),
    "negative": (np.negative, torch.neg),
    "exp": (np.exp, torch.exp),
    "tanh": (np.tanh, torch.tanh),
    "square": (np.square, torch.square),
    "sign": (np.sign, torch.sign),
    "floor": (np.floor, torch.floor),
    "sqrt of abs": (lambda x: np.sqrt(np.abs(x)), lambda x: x.abs().sqrt()),
    "times 3": (lambda x: x * 3, lambda x: x * 3),
    "2 minus": (lambda x: 2 - x, lambda x: 2 - x),
    "above 1": (lambda x: x > 1, lambda x: x > 1),
    "plus itself": (lambda x: x + x, lambda x: x + x),
    "less its mean": (
        lambda x: x - ak.mean(x, axis=1, keepdims=True),
        lambda x: x - x.mean(1, keepdim=True),
    ),
    "where": (lambda x: ak.where(x > 0, x, x * 2), lambda x: torch.where(x > 0, x, x * 2)),
}
REARRANGED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "first two": (lambda a: a[:, :2], lambda x: x[:, :2]),
    "every other list": (lambda a: a[::2], lambda x: x[::2]),
    "lists backwards": (lambda a: a[::-1], lambda x: x.flip(0)),
    "two lists by number": (lambda a: a[[0, -1]], lambda x: x[torch.tensor([0, -1])]),
    "joined": (lambda a: ak.concatenate([a, a]), lambda x: torch.cat([x, x])),
    "filled": (
        lambda a: ak.to_numpy(ak.fill_none(ak.pad_none(a, _longest(a), axis=1), 0)),
        lambda x: x.filled(0),
    ),
}
#: The entries of lists with holes stay in their places, and what is behind the end of a list counts as a hole.
SEQUENCES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sort": (lambda a: ak.sort(a, axis=1), lambda x: x.sort(dim=1).values),
    "sort descending": (
        lambda a: ak.sort(a, axis=1, ascending=False),
        lambda x: x.sort(dim=1, descending=True).values,
    ),
    "softmax": (lambda a: ak.softmax(a, axis=1), lambda x: x.softmax(1)),
    "last": (lambda a: a[ak.num(a) > 0][:, -1], lambda x: x[x.lengths() > 0].last()),
    "running sum": (
        lambda a: ak.unflatten(np.concatenate([np.cumsum(row) for row in ak.to_list(a) if row]), ak.num(a)),
        lambda x: x.cumsum(1),
    ),
    "ravelled": (lambda a: ak.to_numpy(ak.flatten(a)), lambda x: x.compressed()),
    "lengths": (lambda a: ak.to_numpy(ak.num(a)), lambda x: x.lengths()),
    "longer than 2": (lambda a: a[ak.num(a) > 2], lambda x: x[x.lengths() > 2]),
}


def _longest(array: Any) -> int:
    return int(ak.max(ak.num(array), initial=0, mask_identity=False))


def _padded(array: Any, width: int) -> Masked:
    """Lists as rows of a matrix, in which the ends are holes."""
    rows = ak.to_list(array)
    width = min(width, max(map(len, rows), default=width))
    found = np.zeros((len(rows), width), dtype=np.ma.getdata(ak.to_numpy(ak.flatten(array, axis=None))).dtype)
    mask = np.zeros(found.shape, dtype=bool)
    for i, row in enumerate(rows):
        for j, entry in enumerate(row):
            if entry is not None:
                found[i, j], mask[i, j] = entry, True
    return Masked(found, mask)


def _read(found: Any, width: int) -> Any:
    """A result of awkward: a number, an array, or lists."""
    if isinstance(found, np.ndarray):
        return found
    if not isinstance(found, ak.Array):
        return Masked(np.asarray(0 if found is None else found), np.asarray(found is not None))
    return np.ma.asarray(ak.to_numpy(found)) if found.ndim == 1 else _padded(found, width)


def _flat() -> Iterator[tuple[str, Any, Any, int]]:
    draw = np.random.default_rng(0)
    for size in (1, 2, 5, 17):
        for dtype in ("float64", "int64"):
            values = (draw.standard_normal(size) * 4).astype(dtype)
            for share in (0.0, 0.3, 1.0):
                mask = draw.random(size) >= share
                if mask.any():
                    entries = [v if m else None for v, m in zip(values.tolist(), mask.tolist(), strict=True)]
                    ours = mg.masked(torch.tensor(values), torch.tensor(mask))
                    yield f"{dtype} {size} {share}", ak.Array(entries), ours, size


def _lists() -> Iterator[tuple[str, Any, Any, int]]:
    """Label, lists, ours, and the length of the longest list."""
    draw = np.random.default_rng(1)
    for lengths in ((3, 1, 4), (5, 5), (1,), (2, 0, 3), (6, 2, 1, 4)):
        for dtype in ("float64", "int64"):
            for holes in ("", " with holes"):
                parts = [(draw.standard_normal(n) * 4).astype(dtype) for n in lengths]
                masks = [draw.random(n) >= (0.35 if holes else 0) for n in lengths]
                lists = [
                    [v if m else None for v, m in zip(a.tolist(), k.tolist(), strict=True)]
                    for a, k in zip(parts, masks, strict=True)
                ]
                array = ak.values_astype(ak.Array(lists), dtype)
                empty = " nothing left" if not all(m.any() for m in masks) else ""
                layout = torch.strided if holes else torch.jagged
                ours = mg.from_sequences([torch.tensor(part) for part in parts], layout=layout)
                if holes:
                    there: Tensor = mg.from_sequences([torch.tensor(m) for m in masks]).filled(False)
                    ours = mg.masked(ours.filled(0), there)
                yield f"{dtype} {lengths}{holes}{empty}", array, ours, max(lengths)


def _along(name: str, array: Any, axis: int | None, keepdims: bool) -> Any:
    found = getattr(ak, name)(array, axis=axis, keepdims=keepdims)
    return found[0, 0] if axis is None and keepdims else found


def _ours_along(name: str, x: Any, axis: int | None, keepdims: bool) -> Any:
    options: dict[str, Any] = {"correction": 0} if name in ("var", "std") else {}
    if axis is None and name in ("any", "all", "prod", "argmin", "argmax"):
        return getattr(x, name)()
    return getattr(x, OURS.get(name, name))(axis, keepdim=keepdims and axis is not None, **options)


def cases() -> Iterator[Case]:
    """Each operation on each array."""
    for label, array, ours, size in _flat():
        for name in REDUCTIONS:
            theirs = partial(
                lambda name, array, size: _read(getattr(ak, name)(array), size), name, array, size
            )
            mine = partial(lambda name, x: getattr(x, OURS.get(name, name))(), name, ours)
            yield Case(f"{name} {label}", theirs, mine)
    for label, array, ours, width in _lists():
        for name in ALONG:
            for axis, keepdims in ((1, False), (1, True), (None, False)):
                run = (axis, keepdims)
                theirs = partial(lambda n, a, w, *run: _read(_along(n, a, *run), 1), name, array, width, *run)
                what = f"{name} lists axis={axis} keepdims={keepdims} {label}"
                yield Case(what, theirs, partial(_ours_along, name, ours, *run))
        table = {**ELEMENTWISE, **REARRANGED, **({} if "holes" in label else SEQUENCES)}
        for name, (theirs_of, ours_of) in table.items():
            theirs = partial(lambda f, a, w: _read(f(a), w), theirs_of, array, width)
            yield Case(f"{name} lists {label}", theirs, partial(ours_of, ours))


SUITE = Suite("awkward", ak.__version__, cases)
