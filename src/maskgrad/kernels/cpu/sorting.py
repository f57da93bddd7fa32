r"""Sorting row indices together with their original positions, and finding the runs of equal indices.

Index and position share one 64-bit *key*, ``index << bits | place``, so that a pass moves one integer. Passes of a
least-significant-digit radix sort over the index bits alone suffice: positions are in order initially, and
each pass is stable. The work is O(n) and so is the memory; only the number of passes depends on
the number of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled

FEW = 64  # entries up to which insertion sort is used
DIGIT = 12  # bits a pass, at most; its 4096 counters stay in the first-level cache


class Runs(NamedTuple):
    """Run k: the entries ``keys[starts[k]:starts[k + 1]] & places``, in order, all of index ``rows[k]``; arrays."""

    keys: Any
    places: Any
    starts: Any
    rows: Any


def fits(n: int, num_rows: int) -> bool:
    """Return whether index and position fit into one key: true up to 2**40 rows of 2**23 entries."""
    return _bits(n) + _bits(num_rows) <= 63


def runs(indices: Tensor, num_rows: int) -> Runs:
    """The runs of equal ``indices`` (n,), which must all lie in [0, num_rows) (else IndexError, nothing written)."""
    n = indices.shape[0]
    places, bits = _bits(n), _bits(num_rows)
    work, rows = np.empty((2, n + 1), np.uint64), np.empty(n, np.int64)
    digit = max(min(DIGIT, places), 1)  # counters that outnumber the entries cost more than a pass
    passes = -(-bits // digit)
    outside, number, last = _runs(
        _plain(indices), num_rows, places, passes, -(-bits // max(passes, 1)), work, rows
    )
    if outside >= 0:
        raise IndexError(
            f"indices must lie in [0, {num_rows}), the rows of the table, "
            f"but indices[{outside}] is {int(indices[outside])}"
        )
    rows = rows[:number] if 2 * number > n else rows[:number].copy()
    return Runs(work[last, :n], np.uint64((1 << places) - 1), work[1 - last].view(np.int64), rows)


def are_inside(indices: Tensor, num_rows: int) -> bool:
    """Return whether all ``indices`` (1, n) lie in [0, num_rows)."""
    inside: bool = _are_inside(_plain(indices)[0], num_rows)
    return inside


def _plain(indices: Tensor) -> Any:
    return (indices if indices.is_contiguous() else indices.contiguous()).numpy()  # integers have no gradient


@compiled
def _are_inside(indices: Any, num_rows: int) -> bool:
    outside = 0
    for i in range(indices.size):  # without a branch
        outside |= indices[i] < 0 or indices[i] >= num_rows
    return outside == 0


def _bits(count: int) -> int:
    return max(count - 1, 0).bit_length()


@compiled
def _pack(indices: Any, num_rows: int, places: int, keys: Any) -> tuple[int, bool]:
    """Fill ``keys``; return the position of an index outside the table, or -1, and whether they are ascending."""
    outside, ascending, before = -1, True, np.int64(-1)
    for i in range(indices.size):
        index = np.int64(indices[i])
        if index < 0 or index >= num_rows:
            outside = i
        if index < before:
            ascending = False
        before = index
        keys[i] = (np.uint64(index) << np.uint64(places)) | np.uint64(i)
    return outside, ascending


@compiled
def _insert(keys: Any) -> None:
    """Sort a few keys; keys of one index are in order, as they contain the position."""
    for i in range(1, keys.size):
        key, k = keys[i], i
        while k > 0 and keys[k - 1] > key:
            keys[k] = keys[k - 1]
            k -= 1
        keys[k] = key


@compiled
def _runs(
    indices: Any, num_rows: int, places: int, passes: int, digit_bits: int, work: Any, rows: Any
) -> tuple[int, int, int]:
    """Sort in one call: returns an index outside or -1, the number of runs, and the row of ``work`` with the keys.

    Their starts are in the other row.
    """
    keys, last = work[0, : indices.size], 0
    outside, ascending = _pack(indices, num_rows, places, keys)
    if outside >= 0:
        return outside, 0, 0
    if not ascending:
        if keys.size <= FEW:
            _insert(keys)
        elif _radix_sort(keys, work[1, : indices.size], places, passes, digit_bits):
            keys, last = work[1, : indices.size], 1
    return -1, _find_runs(keys, places, work[1 - last].view(np.int64), rows), last


@compiled
def _radix_sort(keys: Any, scratch: Any, places: int, passes: int, digit_bits: int) -> bool:
    """Sort ``keys`` by index, ``digit_bits`` a pass; return whether the result ended up in ``scratch``."""
    radix = 1 << digit_bits
    counts = np.zeros((passes, radix), np.int64)
    for i in range(keys.size):
        for p in range(passes):
            counts[p, (keys[i] >> np.uint64(places + p * digit_bits)) & np.uint64(radix - 1)] += 1
    source, target, moved = keys, scratch, False
    for p in range(passes):
        shift = np.uint64(places + p * digit_bits)
        if counts[p].max() == keys.size:  # all share this digit
            continue
        position = 0
        for digit in range(radix):
            position, counts[p, digit] = position + counts[p, digit], position
        for i in range(source.size):
            digit = (source[i] >> shift) & np.uint64(radix - 1)
            target[counts[p, digit]] = source[i]
            counts[p, digit] += 1
        source, target, moved = target, source, not moved
    return moved


@compiled
def _find_runs(keys: Any, places: int, starts: Any, rows: Any) -> int:
    number = 0
    for i in range(keys.size):
        row = np.int64(keys[i] >> np.uint64(places))
        if number == 0 or rows[number - 1] != row:
            starts[number], rows[number] = i, row
            number += 1
    starts[number] = keys.size
    return number
