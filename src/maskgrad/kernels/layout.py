"""Viewing a reduction over any dimensions of any strided tensor as one nest of three loops.

Dimensions are ordered as the values lie in memory, and neighbours that are treated alike and can be traversed with
one stride (by values and mask) become one *axis*. The innermost axis has stride 1; the kernels read it in
blocks. If it is reduced, rows are summed; if it is kept, the nearest reduced axis is summed over columns. All
other axes are *outer*: one flat counter, turned into offsets by sizes and strides, so that broadcast (stride 0)
masks are never expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Axis(NamedTuple):
    """Neighbouring dimensions traversed as one: their common ``size``, and a stride for each tensor."""

    size: int
    reduced: bool
    strides: tuple[int, ...]


class Nest(NamedTuple):
    """The three loops: ``outer`` (slowest first), the ``summed`` axis, and the ``inner`` kept one (size 1 for rows)."""

    outer: list[Axis]
    summed: Axis
    inner: Axis | None


def unrepeated(values: Tensor, mask: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, int]:
    """The same without the repetitions that ``expand`` made along ``dims``, and how often each entry was repeated.

    A reduction then reads each entry in memory once, and makes no larger copies.
    """
    repeats = 1
    if not values.is_contiguous():
        for d in dims:
            size = values.shape[d]
            if size > 1 and values.stride(d) == mask.stride(d) == 0:
                values, mask, repeats = values.narrow(d, 0, 1), mask.narrow(d, 0, 1), repeats * size
    return values, mask, repeats


def axes(
    shape: Sequence[int], strides: Sequence[Sequence[int]], reduced: Sequence[int]
) -> tuple[list[Axis], list[int]]:
    """The axes of tensors of one shape, slowest first, and the order of the dimensions in them.

    The strides of the first tensor decide the order.
    """
    first, *others = strides
    order = sorted(range(len(shape)), key=first.__getitem__, reverse=True)
    merged: list[Axis] = []
    for d in order:
        size = shape[d]
        if size == 1:
            continue
        steps, is_reduced = (first[d], *[s[d] for s in others]), d in reduced
        if merged:
            last = merged[-1]
            if last.reduced == is_reduced and last.strides == tuple([s * size for s in steps]):
                merged[-1] = Axis(last.size * size, is_reduced, steps)
                continue
        merged.append(Axis(size, is_reduced, steps))
    return merged, order


def nest(merged: list[Axis]) -> Nest:
    """Choose the summed and the inner axis; at least one axis must be reduced."""
    position = max(i for i, axis in enumerate(merged) if axis.reduced)
    if position == len(merged) - 1:
        return Nest(merged[:-1], merged[-1], None)
    return Nest(merged[:position] + merged[position + 1 : -1], merged[position], merged[-1])
