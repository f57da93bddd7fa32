"""Two runs whose shapes or rows differ: the first line at which real entries are not the same."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator

from torch import Tensor

from maskgrad.doctor.frames import Place
from maskgrad.doctor.realness import Shadows
from maskgrad.doctor.steady import Entry
from maskgrad.doctor.tolerance import apart

__all__ = ["cropped", "first_difference", "permuted"]

#: of two outputs: what may be compared, None if nothing can be
Aligned = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor] | None"]


def first_difference(first: list[Entry], second: list[Entry], align: Aligned) -> Entry | None:
    """The first entry whose outputs differ where they can be compared.

    Consecutive operations of one line are a group; groups are matched as lines of two texts are. A loop may run once
    more: then only the common end of its operations is compared.
    """
    groups = [_grouped(entries) for entries in (first, second)]
    keys = [[key for key, _ in group] for group in groups]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        for place in range(size):
            for a, b in _pairs(groups[0][start + place][1], groups[1][other + place][1]):
                if any(_differs(x, y, align) for x, y in zip(a.outputs, b.outputs, strict=False)):
                    return a
    return None


def _grouped(entries: list[Entry]) -> list[tuple[Place | None, list[Entry]]]:
    return [
        (place, list(group)) for place, group in itertools.groupby(entries, key=lambda entry: entry.place)
    ]


def _pairs(first: list[Entry], second: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    if [entry.operation for entry in first] == [entry.operation for entry in second]:
        yield from zip(first, second, strict=True)
        return
    pairs = list(zip(reversed(first), reversed(second), strict=False))
    yield from ((a, b) for a, b in reversed(pairs) if a.operation == b.operation and a.outputs[0].ndim > 1)


def _differs(a: Tensor, b: Tensor, align: Aligned) -> bool:
    aligned = align(a, b)
    return aligned is not None and apart(*aligned)


def cropped(shape: tuple[int, int], masks: list[Tensor], *, left: bool) -> Aligned:
    """Outputs of a run with one more column: cut it off, and compare what the mask has."""
    columns = shape[1]
    shadows = Shadows(masks)

    def align(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        if a.ndim != b.ndim:
            return None
        for axis, (before, after) in enumerate(zip(a.shape, b.shape, strict=True)):
            if before == after:
                continue
            if before % columns or after != before // columns * (columns + 1):
                return None
            split = b.unflatten(axis, (before // columns, columns + 1))
            b = split.narrow(axis + 1, 1 if left else 0, columns).flatten(axis, axis + 1)
        real = shadows.by_shape(a)
        if real is None:
            return a, b
        return a[real], b[real]

    return align


def permuted(order: Tensor) -> Aligned:
    """Outputs of a run with rows in another order: put them back, and choose the axis that fits best."""
    rows = len(order)

    def align(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        if a.shape != b.shape:
            return None
        options = [(a, b)]
        axes = [axis for axis, size in enumerate(a.shape) if size == rows]
        options += [(a.index_select(axis, order.to(a.device)), b) for axis in axes]
        if len(axes) > 1:
            options.append(
                (a.index_select(axes[0], order.to(a.device)).index_select(axes[1], order.to(a.device)), b)
            )
        if a.ndim and a.shape[0] > rows and a.shape[0] % rows == 0:
            for split in ((rows, -1), (-1, rows)):
                whole = a.unflatten(0, split)
                axis = split.index(rows)
                options.append((whole.index_select(axis, order.to(a.device)).flatten(0, 1), b))
        return next((pair for pair in options if not apart(*pair)), options[min(1, len(options) - 1)])

    return align
