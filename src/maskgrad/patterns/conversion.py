"""Conversion of indices to a pattern of any layout, and the order of its entries.

A conversion depends on the pattern, never on values: stored zeros remain entries. It sorts the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.compressed import BLOCKED, BY_ROW, TRANSPOSED, CompressedPattern
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern
from maskgrad.patterns.pattern import Pattern, PatternFacts
from maskgrad.patterns.stored import CoordinatePattern, StoredPattern, ravel_multi_index

__all__ = ["BLOCKED", "LAYOUTS", "STORAGES", "Storage", "pattern_of_facts", "pattern_of_places"]

LAYOUTS = (torch.strided, torch.sparse_coo, *TRANSPOSED)


class Storage(NamedTuple):
    """Storage of patterns in a layout, one record per layout, by its name in ``torch``.

    Attributes:
        tensors: the names of :meth:`Pattern.tensors`, as the keys of a pytree.
        made: makes a pattern from its facts and these tensors.
        of_places: makes a pattern from indices (s, n), sizes, layout and block size, and returns the order in
            which entries at these indices are stored; None: not supported.
    """

    tensors: tuple[str, ...]
    made: Callable[..., Pattern]
    of_places: Callable[..., tuple[StoredPattern, Tensor]] | None


def pattern_of_facts(facts: PatternFacts, tensors: tuple[Any, ...]) -> Pattern:
    """Make a pattern from the results of :meth:`Pattern.facts` and :meth:`Pattern.tensors`."""
    storage = STORAGES[facts.layout]
    number, blocked = len(storage.tensors), facts.layout in BLOCKED_NAMES
    if len(tensors) != number or (facts.blocksize is None) == blocked:
        raise ValueError(
            f"a pattern of layout torch.{facts.layout} has {number} tensors, found {len(tensors)}, and a block size if "
            f"it has blocks, found {facts.blocksize}"
        )
    return storage.made(facts, *tensors)


def pattern_of_places(
    coordinates: Tensor,
    sizes: tuple[int, ...],
    layout: torch.layout,
    blocksize: tuple[int, int] | None = None,
) -> tuple[StoredPattern, Tensor]:
    """A pattern of the given layout, and the order (n,) in which entries at ``coordinates`` are stored.

    Args:
        coordinates: (s, n) distinct indices, in any order.
        sizes: the s sizes.
        layout: one of torch's five sparse layouts, or ``torch.jagged``.
        blocksize: height and width of a block, for the two blocked layouts.

    Raises:
        ValueError: the layout is unknown, needs (at least) two dimensions, a block size is missing, does not divide
            the sizes or is not supported, a block is specified only in part, batches differ in their number of entries,
            or a sequence has a gap.
    """
    storage = STORAGES.get(_name(layout))
    if storage is None or storage.of_places is None:
        known = ", ".join(f"torch.{name}" for name, kind in STORAGES.items() if kind.of_places is not None)
        raise ValueError(f"layout must be one of {known}, found {layout}")
    if (blocksize is None) == (layout in BLOCKED):
        wanted = "two positive numbers" if layout in BLOCKED else "None"
        raise ValueError(f"blocksize must be {wanted} for layout {layout}, found {blocksize}")
    return storage.of_places(coordinates, sizes, layout, blocksize)


def _name(layout: torch.layout) -> str:
    return str(layout).removeprefix("torch.")


def _listed(coordinates: Tensor, sizes: tuple[int, ...], *_: Any) -> tuple[StoredPattern, Tensor]:
    order = torch.argsort(ravel_multi_index(coordinates, sizes))
    return CoordinatePattern(coordinates[:, order], sizes), order


def _compressed(
    coordinates: Tensor, sizes: tuple[int, ...], layout: torch.layout, blocksize: tuple[int, int] | None
) -> tuple[StoredPattern, Tensor]:
    """Sort indices by batch, line, position and place in the block; count the blocks of each line."""
    if len(sizes) < 2:
        raise ValueError(
            f"layout {layout} needs at least 2 sparse dimensions, found shape {sizes}; use torch.sparse_coo"
        )
    height, width = blocksize or (1, 1)
    if height < 1 or width < 1 or sizes[-2] % height or sizes[-1] % width:
        raise ValueError(
            f"blocksize must divide the last two sizes {sizes[-2:]}, found {blocksize}; "
            "choose divisors, such as (1, 1)"
        )
    (*batch, row, column), shape = coordinates, sizes[:-2]
    block, grid = (row // height, column // width), (sizes[-2] // height, sizes[-1] // width)
    (line, position), (lines, most) = (block, grid) if layout in BY_ROW else (block[::-1], grid[::-1])
    places = torch.stack([*batch, line, position, row % height, column % width])
    keys, order = torch.sort(ravel_multi_index(places, (*shape, lines, most, height, width)))
    counts = torch.unique_consecutive(keys // (height * width), return_counts=True)[1]
    partial = counts != height * width
    if bool(partial.any()):
        first = order[counts.cumsum(0)[partial][0] - 1]
        raise ValueError(
            f"layout {layout} stores whole blocks, but {int(partial.sum())} blocks of size {blocksize} are specified "
            f"only in part, the first at {tuple([int(index[first]) for index in (*batch, *block)])}; use smaller "
            "blocks, or another layout"
        )
    stored, number = places[:, order[:: height * width]], math.prod(shape)
    which = ravel_multi_index(stored[:-3], (*shape, lines))
    pointers = torch.nn.functional.pad(
        torch.bincount(which, minlength=number * lines).reshape(number, lines).cumsum(1), (1, 0)
    )
    totals = pointers[:, -1]
    if number > 1 and bool((totals != totals[0]).any()):
        raise ValueError(
            f"layout {layout} stores the same number of entries for every matrix of a batch, found between "
            f"{int(totals.min())} and {int(totals.max())}; use torch.sparse_coo"
        )
    positions = stored[-3].reshape(*shape, -1 if number else 0)
    return CompressedPattern(layout, pointers.reshape(*shape, lines + 1), positions, sizes, blocksize), order


def _sequences(coordinates: Tensor, sizes: tuple[int, ...], *_: Any) -> tuple[StoredPattern, Tensor]:
    """Make a jagged pattern; each sequence must be specified in its first positions."""
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
            "layout torch.jagged needs sequences that are specified in their first positions, but sequence "
            f"{int(which[row])} is masked at position {int(pattern.positions()[row])}, and specified after it; "
            "use a Boolean mask"
        )
    return pattern, order


BLOCKED_NAMES = frozenset(map(_name, BLOCKED))
STORAGES: dict[str, Storage] = {
    "strided": Storage(("mask",), lambda _, mask: BooleanPattern(mask), None),
    "sparse_coo": Storage(
        ("indices",), lambda facts, indices: CoordinatePattern(indices, facts.sizes), _listed
    ),
    **{
        _name(layout): Storage(
            ("pointers", "positions"),
            lambda facts, pointers, positions: CompressedPattern(
                getattr(torch, facts.layout), pointers, positions, facts.sizes, facts.blocksize
            ),
            _compressed,
        )
        for layout in TRANSPOSED
    },
    "jagged": Storage(
        ("offsets", "index", "frame"),
        lambda facts, offsets, index, frame: JaggedPattern(offsets, index, frame, facts.sizes),
        _sequences,
    ),
}
