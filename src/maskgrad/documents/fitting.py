"""Which samples share a row: bins of equal size, filled as full as possible."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["pack"]


def pack(
    lengths: Tensor | Sequence[int] | np.ndarray[Any, Any], budget: int, *, ranks: int = 1
) -> list[list[int]]:
    """Return which samples share a row of ``budget`` tokens: best fit decreasing.

    The longest sample first, each goes into the fullest row in which it fits, the first of equally full ones. The same
    arguments give the same rows, on every machine.

    Args:
        lengths: the length of each sample: integers (N,); an empty sample counts as one token.
        budget: tokens of a row.
        ranks: the number of ranks that take rows in turn, ``rows[rank::ranks]``: all get the same number of rows, the
            last of which may be empty lists, and about the same number of tokens in each step.

    Returns:
        A list of rows, each a list of indices into ``lengths``, ascending; the fullest rows first.

    Raises:
        TypeError: ``lengths`` or ``budget`` are not integers.
        ValueError: a length is negative or above ``budget`` (the message names the sample), or ``ranks`` is below 1.

    Dense equivalent: one sample in each row.

    Example:
        >>> mg.interop.pack([3, 1, 4, 1, 5], budget=7)
        [[1, 3, 4], [0, 2]]

    Source: Johnson, "Near-optimal bin packing algorithms", MIT, 1973. See also
    :class:`maskgrad.interop.TokenBudgetSampler`, which groups similar lengths for padded batches.
    """
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(
            f"mg.interop.pack: ranks must be 1 or more, found {ranks!r}; write mg.interop.pack(lengths, budget)"
        )
    sizes = _checked(lengths, budget)
    rows: list[list[int]] = []
    #: rows by the room that is left, which lies in ``rooms``, in ascending order
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for sample in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # stable: equal lengths in their order
        at = bisect.bisect_left(rooms, sizes[sample])
        if at < len(rooms):
            room = rooms[at]
            row = by_room[room].pop(0)
            if not by_room[room]:
                del by_room[room], rooms[at]
        else:
            room, row = budget, len(rows)
            rows.append([])
        rows[row].append(sample)
        left = room - sizes[sample]
        if left:
            if left not in by_room:
                by_room[left] = []
                bisect.insort(rooms, left)
            bisect.insort(by_room[left], row)
    rows = sorted((sorted(row) for row in rows), key=lambda row: -sum(sizes[i] for i in row))
    return rows + [[] for _ in range(-len(rows) % ranks)]


def _checked(lengths: Any, budget: Any) -> list[int]:
    """The lengths as integers of at least 1."""
    function = "mg.interop.pack"
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise TypeError(
            f"{function}: budget must be 1 or more, found {budget!r}; write {function}(lengths, int(budget))"
        )
    found = torch.as_tensor(lengths)
    if found.ndim != 1 or (found.numel() and (found.is_floating_point() or found.dtype == torch.bool)):
        raise TypeError(
            f"{function}: lengths must be integers (N,), found {found.dtype} of shape {tuple(found.shape)}; write "
            f"{function}([len(sample) for sample in data], budget)"
        )
    wrong = (found < 0) | (found > budget)
    if bool(wrong.any()):
        sample = int(wrong.nonzero()[0])
        raise ValueError(
            f"{function}: sample {sample} has length {int(found[sample])}, not from 0 to the budget of {budget}; for "
            f"samples cut to it write {function}([min(max(length, 0), budget) for length in lengths], budget)"
        )
    sizes: list[int] = found.clamp(min=1).tolist()
    return sizes
