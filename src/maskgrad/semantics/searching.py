"""Binary search: how many entries of a sorted sequence lie below a value.

What is returned is a count, not the position of an entry; so with unspecified entries in the sequence it is torch's
result on the sequence without them: their number is not added back. A sequence of nothing has nothing below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.compaction import positions_along, specified_first
from maskgrad.semantics.entries import Entries, filler_as, mask_of, values_of
from maskgrad.semantics.facts import of_rule

if TYPE_CHECKING:
    pass


def _without_gaps(sequence: Entries, sorter: Any) -> tuple[Tensor, Tensor]:
    """The specified entries in their order, the last one repeated in place of the others; and their number."""
    values, mask = sequence
    if sorter is not None:
        positions, known = (sorter.values, sorter.mask) if isinstance(sorter, Entries) else (sorter, None)
        positions = positions if known is None else torch.where(known, positions, 0)
        values, mask = values.gather(-1, positions), mask.gather(-1, positions)
        mask = mask if known is None else mask & known
    dim = values.ndim - 1
    count = mask.sum(dim, keepdim=True)
    moved = torch.where(mask, values, filler_as(values.dtype, 0)).gather(dim, specified_first(mask, dim))
    last = moved.gather(dim, (count - 1).clamp(min=0))
    return torch.where(positions_along(mask, dim) < count, moved, last), count


def searchsorted(sorted_sequence: Any, input: Any, *, sorter: Any = None, **options: Any) -> Entries:
    """For each specified value, the number of specified entries below it (not above it if ``right``)."""
    wanted = input
    if isinstance(input, Entries):  # contiguous, or torch warns of the copy it makes
        wanted = torch.where(input.mask, input.values, filler_as(input.values.dtype, 0)).contiguous()
    if isinstance(sorter, Entries) and not isinstance(sorted_sequence, Entries):
        sorted_sequence = Entries(sorted_sequence, mask_of(sorted_sequence))
    if isinstance(sorted_sequence, Entries) and sorted_sequence.values.shape[-1]:
        sequence, count = _without_gaps(sorted_sequence, sorter)
        found = torch.searchsorted(sequence.contiguous(), wanted, **options)
        # a value above the last entry is above its repetitions too
        found = torch.minimum(found, (count if sequence.ndim > 1 else count.squeeze(-1)).to(found.dtype))
    else:
        found = torch.searchsorted(values_of(sorted_sequence), wanted, sorter=values_of(sorter), **options)
    return Entries(found, input.mask if isinstance(input, Entries) else mask_of(found))


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Entries:
    """The bucket of each specified value between the specified boundaries."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


OPERATIONS = tuple(of_rule(rule, "sorting", "that of the values") for rule in (searchsorted, bucketize))
