"""awkward: reductions of flat arrays with ``None``, beside the specified entries of a MaskedTensor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import awkward as ak
import numpy as np
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

REDUCTIONS = {
    "sum": 0,
    "prod": 1,
    "min": None,
    "max": None,
    "mean": None,
    "any": False,
    "all": True,
    "count": 0,
}
OURS = {"min": "amin", "max": "amax", "count": "num_specified"}


def _data() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    for size in (1, 2, 5, 17):
        for dtype in ("float64", "int64"):
            values = (draw.standard_normal(size) * 4).astype(dtype)
            for share in (0.0, 0.3, 1.0):
                yield f"{dtype} {size} {share}", values, draw.random(size) >= share


def _theirs(name: str, values: np.ndarray, mask: np.ndarray) -> Any:
    array = ak.Array([v if m else None for v, m in zip(values.tolist(), mask.tolist(), strict=True)])
    found = getattr(ak, name)(array)
    return Masked(np.asarray(0 if found is None else found), np.asarray(found is not None))


def _ours(name: str, values: np.ndarray, mask: np.ndarray) -> Any:
    x = mg.masked(torch.tensor(values), torch.tensor(mask))
    return getattr(x, OURS.get(name, name))()


def cases() -> Iterator[Case]:
    """Each reduction on each array."""
    for label, values, mask in _data():
        if mask.any():
            for name in REDUCTIONS:
                run = (name, values, mask)
                yield Case(f"{name} {label}", partial(_theirs, *run), partial(_ours, *run))


SUITE = Suite("awkward", ak.__version__, cases)
