"""Sorting, binary search, distinct entries and membership, all among the specified entries.

Sorting puts the specified entries in torch's order, the unspecified ones after them, ascending or descending.

There is no sentinel value: a specified NaN is sorted as in torch, before unspecified entries. Positions refer
to the original tensor; after the last specified entry they are unspecified, like the values.

A binary search returns a count, not the position of an entry; so with unspecified entries in the sequence it is
torch's result on the sequence without them. In an empty sequence it is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.kernels.extrema import lowest
from maskgrad.mode import can_read
from maskgrad.semantics.dimensions import as_dim, positions_along, specified_first
from maskgrad.semantics.entries import Entries, as_entries, filled, filler_as, mask_of, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.signatures import bound


def read(input: Entries, dim: int, index: Tensor) -> Tensor:
    """The values at these positions, 0 where unspecified, with gradients."""
    values: Tensor = filled(input)
    return values.gather(dim, index)


def sorted_positions(input: Entries, dim: int, descending: bool = False) -> Tensor:
    """The permutation that sorts, stably: specified entries by value, then the others."""
    values, mask = input
    safe = torch.where(mask, values.detach(), filler_as(values.dtype, 0))
    by_value = torch.sort(safe, dim=dim, descending=descending, stable=True).indices
    # stable too: among the specified entries the order of the values is kept
    return by_value.gather(dim, specified_first(mask.gather(dim, by_value), dim))


def leading(mask: Tensor, dim: int) -> Tensor:
    """The pattern with its specified entries moved to the front."""
    return positions_along(mask, dim) < kernels.masked_count(mask, (dim,), True)


def sort(input: Entries, dim: int = -1, descending: bool = False, *, stable: bool | None = False) -> Any:
    """Sorted values and their original positions."""
    dim = as_dim(dim, input.values.ndim)
    order, mask = sorted_positions(input, dim, descending), leading(input.mask, dim)
    kind: Any = torch.return_types.sort
    return kind([Entries(read(input, dim, order), mask), Entries(order, mask)])


def argsort(input: Entries, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Entries:
    """Positions that sort."""
    dim = as_dim(dim, input.values.ndim)
    return Entries(sorted_positions(input, dim, descending), leading(input.mask, dim))


def msort(input: Entries) -> Entries:
    """Values sorted along the first dimension."""
    return sort(input, 0)[0]  # type: ignore[no-any-return]


def topk(input: Entries, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest or smallest specified entries; the last are unspecified where there are fewer than k."""
    values, mask = input
    dim = as_dim(dim, values.ndim)
    last = lowest(values.dtype, largest)
    index = torch.topk(torch.where(mask, values.detach(), last), k, dim, largest).indices
    known = mask.gather(dim, index)
    # a filler may tie with an entry, or come before NaN
    if values.ndim and not (can_read(known) and known.all()):
        index = sorted_positions(input, dim, largest).narrow(dim, 0, k)
        known = mask.gather(dim, index)
    kind: Any = torch.return_types.topk
    return kind([Entries(read(input, dim, index), known), Entries(index, known)])


def _without_gaps(sequence: Entries, sorter: Any) -> tuple[Tensor, Tensor]:
    """The specified entries in order, with the last one repeated for the others; and their number."""
    values, mask = sequence
    if sorter is not None:
        positions = filled(sorter)
        values, mask = values.gather(-1, positions), mask.gather(-1, positions) & mask_of(sorter)
    dim = values.ndim - 1
    count = mask.sum(dim, keepdim=True)
    moved = torch.where(mask, values, filler_as(values.dtype, 0)).gather(dim, specified_first(mask, dim))
    last = moved.gather(dim, (count - 1).clamp(min=0))
    return torch.where(positions_along(mask, dim) < count, moved, last), count


def searchsorted(sorted_sequence: Any, input: Any, *, sorter: Any = None, **options: Any) -> Entries:
    """For each specified value, the number of specified entries below it (not above it if ``right``)."""
    wanted = input
    if isinstance(input, Entries):  # contiguous, to avoid torch's warning about a copy
        wanted = filled(input).contiguous()
    if isinstance(sorter, Entries) and not isinstance(sorted_sequence, Entries):
        sorted_sequence = as_entries(sorted_sequence)
    if isinstance(sorted_sequence, Entries) and sorted_sequence.values.shape[-1]:
        sequence, count = _without_gaps(sorted_sequence, sorter)
        found = torch.searchsorted(sequence.contiguous(), wanted, **options)
        # a value above the last entry is also above its repetitions
        found = torch.minimum(found, (count if sequence.ndim > 1 else count.squeeze(-1)).to(found.dtype))
    else:
        found = torch.searchsorted(values_of(sorted_sequence), wanted, sorter=values_of(sorter), **options)
    return Entries(found, input.mask if isinstance(input, Entries) else mask_of(found))


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Entries:
    """The bucket of each specified value between the specified boundaries."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


#: torch's parameters by the name of the function; the others are keywords.
PARAMETERS = {
    "unique": "input sorted return_inverse return_counts dim",
    "unique_consecutive": "input return_inverse return_counts dim",
}


def _complete_slices(x: Entries, dim: int, name: str) -> Tensor:
    """Return which slices are specified; partially specified ones cannot be compared."""
    others = tuple(d for d in range(x.mask.ndim) if d != dim % x.mask.ndim)
    complete = x.mask.all(others) if others else x.mask
    some = x.mask.any(others) if others else x.mask
    partial = some & ~complete
    if partial.any():
        raise UndefinedOnMaskedError(
            f"{name}(dim={dim})",
            f"{int(partial.sum())} slices along dimension {dim} are partially specified, the first at position "
            f"{int(partial.nonzero()[0])}, and cannot be compared",
            "Select complete slices first, as in x[x.mask.all(1)], or fill the gaps, x.filled(value).",
        )
    return complete


def distinct(name: str) -> Callable[..., Any]:
    """The rule of ``unique`` and ``unique_consecutive``: torch's result on the specified entries (slices)."""
    plain = getattr(torch, name)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bound(PARAMETERS[name], args, kwargs)
        x, dim = arguments.pop("input"), arguments.get("dim")
        if dim is None:
            present, left = x.mask, x.values[x.mask]
        else:
            present = _complete_slices(x, dim, name)
            left = x.values.index_select(dim, present.nonzero().squeeze(1)) if x.values.ndim else x.values
        found = plain(left, **arguments)
        if isinstance(found, torch.Tensor):
            return as_entries(found)
        results = [as_entries(part) for part in found]
        if arguments.get("return_inverse"):
            inverse = torch.zeros(present.shape, dtype=torch.int64, device=present.device)
            results[1] = Entries(inverse.masked_scatter(present, found[1]), present)
        return tuple(results)

    return body


def isin(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Return whether each specified element is among the specified test elements; False if there are none."""
    names = {"element": "elements", "test_element": "test_elements"}
    arguments = bound("elements test_elements", args, {names.get(k, k): v for k, v in kwargs.items()})
    elements, tests = arguments.pop("elements"), arguments.pop("test_elements")
    values = values_of(elements)
    if not isinstance(tests, Entries):
        found = torch.isin(values, tests, **arguments)
        return Entries(found, elements.mask)
    flat, known = tests.values.reshape(-1), tests.mask.reshape(-1)
    if flat.numel():
        # unspecified test elements repeat a specified one, which does not change the set
        one = known.to(torch.uint8).argmax(0, keepdim=True)  # no data-dependent size for graphs
        repeated = torch.where(known.gather(0, one), flat.gather(0, one), filler_as(flat.dtype, 0))
        flat = torch.where(known, flat, repeated)
        arguments.pop("assume_unique", None)
    found = torch.isin(values, flat, **arguments)
    nothing = torch.full_like(found, bool(arguments.get("invert", False)))
    found = torch.where(known.any(), found, nothing)
    return Entries(found, elements.mask if isinstance(elements, Entries) else mask_of(found))


DISTINCT = "fully specified; the inverse where the input is"
LAST = "moves with the values, unspecified entries last"
BACK = "moves back with the values"

OPERATIONS = (
    of_rule(sort, "sorting", LAST, BACK, padded="rows"),
    of_rule(argsort, "sorting", LAST, padded="rows"),
    of_rule(msort, "sorting", LAST, BACK),
    of_rule(topk, "sorting", "specified up to the number of specified entries", BACK, padded="mask"),
    *(of_rule(rule, "sorting", "that of the values", padded="mask") for rule in (searchsorted, bucketize)),
    record("unique", "sorting", distinct("unique"), DISTINCT, padded="mask"),
    record("unique_consecutive", "sorting", distinct("unique_consecutive"), DISTINCT),
    record("isin", "sorting", isin, "that of the elements", padded="mask"),
)
