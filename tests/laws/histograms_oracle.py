"""Histograms: torch's on the entries (points) that are specified, and have a specified weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import Result

__all__ = ["HISTOGRAMS"]


def histogram(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Every bin is known, even if nothing is in it."""
    args, kwargs = call.with_tensors(list(range(len(leaves))))
    which = dict(enumerate(leaves))
    # by number: the input comes first, a weight has the input's points, edges stay as they are
    weight = next((kwargs[key] for key in ("weight", "weights") if kwargs.get(key) is not None), None)
    mask = masks[0].all(-1) if entry.name == "histogramdd" else masks[0]
    if weight is not None:
        mask = mask & masks[weight]
        which[weight] = leaves[weight][mask]
    which[0] = leaves[0][mask]
    args, kwargs = call.with_tensors([which[i] for i in range(len(leaves))])
    values = entry.function(*args, **kwargs)
    return values, [torch.ones(part.shape, dtype=torch.bool) for part in parts_of(values)]


HISTOGRAMS: dict[str, Any] = dict.fromkeys(["histc", "histogram", "histogramdd", "bincount"], histogram)
