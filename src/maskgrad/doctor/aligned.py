"""Two runs, operation by operation: the first line at which they differ where they can be compared."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from maskgrad.doctor.case import Examination
from maskgrad.doctor.comparison import not_close
from maskgrad.doctor.modes import LoggedOperation, OperationLog
from maskgrad.doctor.validity import ValidityMasks

__all__ = ["Aligned", "first_difference", "log", "where_real"]

#: of two outputs: what may be compared, None if nothing can be
Aligned = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor] | None"]


def log(case: Examination, batch: Any = None, *, wider: int = 0) -> list[LoggedOperation]:
    """The operations of a run."""
    made = OperationLog(wider=wider)
    entries: list[LoggedOperation] = case.runner.run(made, batch, after=lambda _: made.entries)
    return entries


def first_difference(
    first: list[LoggedOperation],
    second: list[LoggedOperation],
    align: Aligned,
) -> LoggedOperation | None:
    """The first operation whose outputs differ where they can be compared, by more than rounding.

    Consecutive operations of one line are a group; groups are matched as lines of two texts are. A loop may run once
    more: then only the common end of its operations is compared.
    """
    groups = [
        [(place, list(group)) for place, group in itertools.groupby(entries, key=lambda entry: entry.place)]
        for entries in (first, second)
    ]
    keys = [[key for key, _ in group] for group in groups]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        for place in range(size):
            for a, b in _pairs(groups[0][start + place][1], groups[1][other + place][1]):
                for outputs in zip(a.outputs, b.outputs, strict=False):
                    aligned = align(*outputs)
                    if aligned is not None and not_close(*aligned):
                        return a
    return None


def _pairs(
    first: list[LoggedOperation], second: list[LoggedOperation]
) -> Iterator[tuple[LoggedOperation, LoggedOperation]]:
    if [entry.operation for entry in first] == [entry.operation for entry in second]:
        yield from zip(first, second, strict=True)
        return
    pairs = list(zip(reversed(first), reversed(second), strict=False))
    yield from ((a, b) for a, b in reversed(pairs) if a.operation == b.operation and a.outputs[0].ndim > 1)


def where_real(
    masks: Sequence[Tensor] = (), kept: Callable[[int, int], Tensor | None] = lambda *_: None
) -> Aligned:
    """Outputs where the masks are True; of a larger one, along an axis, the places ``kept(size, larger size)``."""
    validities = ValidityMasks(list(masks))

    def align(*outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        found = list(outputs)
        if found[0].ndim != found[1].ndim:
            return None
        for axis, sizes in enumerate(zip(*(output.shape for output in outputs), strict=True)):
            if sizes[0] == sizes[1]:
                continue
            places, larger = kept(min(sizes), max(sizes)), sizes.index(max(sizes))
            if places is None:
                return None
            found[larger] = found[larger].index_select(axis, places.to(found[larger].device))
        real = validities.by_shape(found[0])
        first, second = found if real is None else (output[real] for output in found)
        return first, second

    return align
