"""From places to a pattern of any layout, and which entry goes where.

A conversion goes by the pattern, never by the values: a stored zero stays an entry. It costs a sort of the entries.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.compressed import BLOCKED, BY_ROW, TRANSPOSED, CompressedPattern
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern
from maskgrad.patterns.pattern import Pattern, PatternFacts
from maskgrad.patterns.stored import CoordinatePattern, StoredPattern, ravel_multi_index, unravel_index

__all__ = ["BLOCKED", "LAYOUTS", "pattern_of_facts", "pattern_of_places"]

LAYOUTS = (torch.strided, torch.sparse_coo, *TRANSPOSED)


def pattern_of_facts(facts: PatternFacts, tensors: tuple[Any, ...]) -> Pattern:
    """Put a pattern together again from what :meth:`Pattern.facts` and :meth:`Pattern.tensors` gave."""
    layout = getattr(torch, facts.layout)
    number = {torch.strided: 1, torch.sparse_coo: 1, torch.jagged: 3}.get(layout, 2)
    if len(tensors) != number or (facts.blocksize is None) == (layout in BLOCKED):
        raise ValueError(
            f"a pattern of layout {layout} has {number} tensors, found {len(tensors)}, and a block size if it has "
            f"blocks, found {facts.blocksize}"
        )
    if layout == torch.strided:
        return BooleanPattern(tensors[0])
    if layout == torch.sparse_coo:
        return CoordinatePattern(tensors[0], facts.sizes)
    if layout == torch.jagged:
        return JaggedPattern(tensors[0], tensors[1], tensors[2], facts.sizes)
    return CompressedPattern(layout, tensors[0], tensors[1], facts.sizes, facts.blocksize)


def pattern_of_places(
    coordinates: Tensor,
    sizes: tuple[int, ...],
    layout: torch.layout,
    blocksize: tuple[int, int] | None = None,
) -> tuple[StoredPattern, Tensor]:
    """A pattern of the given layout, and the order (n,) in which entries at ``coordinates`` are to be stored.

    Args:
        coordinates: (s, n) places, each once, in any order.
        sizes: the s sizes.
        layout: one of torch's five sparse layouts, or ``torch.jagged``.
        blocksize: height and width of a block, for the two blocked layouts.

    Raises:
        ValueError: the layout is unknown, needs (at least) two dimensions, a block size is missing, does not divide
            the sizes or is not wanted, a block is specified only in part, batches differ in their number of entries, or
            a sequence has a gap.
    """
    if layout == torch.jagged:
        return _sequences(coordinates, sizes)
    if layout not in LAYOUTS or layout == torch.strided:
        known = ", ".join(map(str, (*LAYOUTS, torch.jagged)))
        raise ValueError(f"layout must be one of {known}, found {layout}")
    if (blocksize is None) == (layout in BLOCKED):
        wanted = "two positive numbers" if layout in BLOCKED else "None"
        raise ValueError(f"blocksize must be {wanted} for layout {layout}, found {blocksize}")
    if layout == torch.sparse_coo:
        order = torch.argsort(ravel_multi_index(coordinates, sizes))
        return CoordinatePattern(coordinates[:, order], sizes), order
    if len(sizes) < 2:
        raise ValueError(
            f"layout {layout} needs at least 2 sparse dimensions, found shape {sizes}; use torch.sparse_coo"
        )
    if blocksize is not None:
        return _blocks(coordinates, sizes, layout, blocksize)
    order, pointers, positions = _lines(coordinates, sizes, layout)
    return CompressedPattern(layout, pointers, positions, sizes), order


def _sequences(coordinates: Tensor, sizes: tuple[int, ...]) -> tuple[StoredPattern, Tensor]:
    """Each sequence must be specified in its first positions."""
    if len(sizes) < 2:
        raise ValueError(
            f"layout torch.jagged needs a batch and a ragged dimension, found shape {sizes}; use x.unsqueeze(0)"
        )
    order = torch.argsort(ravel_multi_index(coordinates, sizes))
    which = ravel_multi_index(coordinates[:-1, order], sizes[:-1])
    lengths = torch.bincount(which, minlength=math.prod(sizes[:-1]))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    pattern = jagged_pattern(offsets, coordinates.shape[1], sizes)
    gaps = pattern.positions() != coordinates[-1, order]
    if bool(gaps.any()):
        row = int(gaps.nonzero()[0])
        raise ValueError(
            "layout torch.jagged stores sequences that are specified in their first positions, but sequence "
            f"{int(which[row])} is not specified at position {int(pattern.positions()[row])}, and is behind it; "
            "keep the Boolean mask"
        )
    return pattern, order


def _lines(
    coordinates: Tensor, sizes: tuple[int, ...], layout: torch.layout
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort places by batch, line and position; count them line by line."""
    *batch, row, column = coordinates
    line, position = (row, column) if layout in BY_ROW else (column, row)
    lines, width = (sizes[-2], sizes[-1]) if layout in BY_ROW else (sizes[-1], sizes[-2])
    turned = (*sizes[:-2], lines, width)
    order = torch.argsort(ravel_multi_index(torch.stack([*batch, line, position]), turned))
    number = math.prod(sizes[:-2])
    which = ravel_multi_index(torch.stack([*batch, line]), turned[:-1])
    counts = torch.bincount(which, minlength=number * lines).reshape(number, lines)
    pointers = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    totals = pointers[:, -1]
    if number > 1 and bool((totals != totals[0]).any()):
        raise ValueError(
            f"layout {layout} stores the same number of entries for every matrix of a batch, found between "
            f"{int(totals.min())} and {int(totals.max())}; use torch.sparse_coo"
        )
    shape = sizes[:-2]
    return order, pointers.reshape(*shape, lines + 1), position[order].reshape(*shape, -1 if number else 0)


def _blocks(
    coordinates: Tensor, sizes: tuple[int, ...], layout: torch.layout, blocksize: tuple[int, int]
) -> tuple[StoredPattern, Tensor]:
    """Group places by block; each block must be complete."""
    height, width = blocksize
    if height < 1 or width < 1 or sizes[-2] % height or sizes[-1] % width:
        raise ValueError(
            f"blocksize must divide the last two sizes {sizes[-2:]}, found {tuple(blocksize)}; "
            "choose divisors, such as (1, 1)"
        )
    *batch, row, column = coordinates
    grid = (*sizes[:-2], sizes[-2] // height, sizes[-1] // width)
    block = ravel_multi_index(torch.stack([*batch, row // height, column // width]), grid)
    distinct, counts = torch.unique(block, return_counts=True)
    partial = counts != height * width
    if bool(partial.any()):
        first = unravel_index(distinct[partial][:1], grid)[:, 0].tolist()
        raise ValueError(
            f"layout {layout} stores whole blocks, but {int(partial.sum())} blocks of size {tuple(blocksize)} are "
            f"specified only in part, the first at {tuple(first)}; use smaller blocks, or another layout"
        )
    order, pointers, positions = _lines(unravel_index(distinct, grid), grid, layout)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.shape[0], device=order.device)
    inside = (row % height) * width + column % width
    stored = torch.argsort(rank[torch.searchsorted(distinct, block)] * (height * width) + inside)
    return CompressedPattern(layout, pointers, positions, sizes, blocksize), stored
