"""The sum of gradients of one parameter, of possibly different kinds; specified where any of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from maskgrad.gradients.gradient import AnyGradient, read
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.patterns import CoordinatePattern
from maskgrad.sparse import places

__all__ = ["added", "of_distinct_rows"]


def added(gradients: Sequence[AnyGradient]) -> AnyGradient:
    """Return their sum in at least float32: strided if one is, else with a mask if one has a mask, else COO."""
    parts = [read(g, "a gradient").wide() for g in gradients]
    if any(part.rows is None for part in parts):
        values = reduce(torch.add, [part.whole() for part in parts])
        if any(part.rows is None and part.mask is None for part in parts):
            return values
        entries = [part.finer(len(part.shape)).specified().view(part.shape) for part in parts]
        return of_entries(values, reduce(torch.logical_or, entries))
    leading = max(part.leading for part in parts)
    finer = [part.finer(leading) for part in parts]
    rows = torch.cat([part.rows for part in finer if part.rows is not None])
    merged = replace(
        finer[0], rows=rows, values=torch.cat([part.values for part in finer]), each_once=False
    ).merged(ascending=True)
    masked = any(isinstance(g, MaskedTensor) for g in gradients)
    assert merged.rows is not None
    return of_distinct_rows(merged.rows, merged.values, merged.shape, leading, masked)


def of_distinct_rows(
    rows: Tensor, values: Tensor, shape: torch.Size, leading: int, masked: bool
) -> AnyGradient:
    """A COO gradient of distinct ascending ``rows`` (m,) of the first ``leading`` sizes, with values (m, *row)."""
    sizes = tuple(shape[:leading])
    found = MaskedTensor(values, CoordinatePattern(places(rows, sizes), sizes))
    return found if masked else found.to_sparse_tensor()
