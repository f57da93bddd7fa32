"""The sum of gradients of one parameter, of possibly different kinds; specified where any of them is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from maskgrad.gradients.gradient import AnyGradient, read, widened_dtype
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.patterns import CoordinatePattern
from maskgrad.patterns.conversion import BLOCKED
from maskgrad.sparse import places

__all__ = ["added", "of_distinct_rows"]


def added(gradients: Sequence[AnyGradient]) -> AnyGradient:
    """Return their sum, in at least float32; errors as :func:`maskgrad.gradients.gradient.read`.

    If one is strided, so is the sum; with a Boolean mask it is a MaskedTensor with a mask; sparse ones keep their
    common layout, or become COO, possibly with duplicate rows.
    """
    lists = [
        g.to(widened_dtype(g.dtype))
        for g in gradients
        if isinstance(g, Tensor) and g.layout is torch.sparse_coo
    ]
    if len(lists) == len(gradients) and len({part.sparse_dim() for part in lists}) == 1:
        return reduce(torch.add, lists)
    parts = [read(g, "a gradient").wide() for g in gradients]
    if any(part.rows is None for part in parts):
        values = reduce(torch.add, [part.whole() for part in parts])
        if any(part.is_full for part in parts):
            return values
        entries = [part.finer(len(part.shape)).specified().view(part.shape) for part in parts]
        return of_entries(values, reduce(torch.logical_or, entries))
    leading = max(part.leading for part in parts)
    finer = [part.finer(leading) for part in parts]
    rows = torch.cat([part.rows for part in finer if part.rows is not None])
    merged = replace(
        finer[0], rows=rows, values=torch.cat([part.values for part in finer]), each_once=False
    ).merged(ascending=True)
    layouts = {g.layout for g in gradients}
    layout = layouts.pop() if len(layouts) == 1 else torch.sparse_coo
    masked = any(isinstance(g, MaskedTensor) for g in gradients)
    assert merged.rows is not None
    return of_distinct_rows(
        merged.rows, merged.values, merged.shape, leading, layout, _blocksize(gradients, layout), masked
    )


def of_distinct_rows(
    rows: Tensor,
    values: Tensor,
    shape: torch.Size,
    leading: int,
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    masked: bool,
) -> AnyGradient:
    """A gradient that lists distinct ascending ``rows`` (m,) of the first ``leading`` sizes, with values (m, *row)."""
    sizes = tuple(shape[:leading])
    found = MaskedTensor(values, CoordinatePattern(places(rows, sizes), sizes))
    if layout is not torch.sparse_coo:
        # Sums may have different numbers of entries per matrix of a batch: these stay COO.
        with contextlib.suppress(ValueError):
            found = found.to_sparse(layout, blocksize=blocksize)
    return found if masked else found.to_sparse_tensor()


def _blocksize(gradients: Sequence[AnyGradient], layout: torch.layout) -> tuple[int, int] | None:
    if layout not in BLOCKED:
        return None
    first = gradients[0]
    tensor = first.to_sparse_tensor() if isinstance(first, MaskedTensor) else first
    height, width = tensor.values().shape[-2:]
    return height, width
