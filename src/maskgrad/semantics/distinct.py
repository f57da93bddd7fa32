"""Distinct entries and membership, among the specified entries.

How many distinct entries there are depends on the data, in torch as here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.entries import Entries, filler_as, mask_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable


#: torch's parameters by the name of the function; the others are keywords.
PARAMETERS = {
    "unique": "input sorted return_inverse return_counts dim",
    "unique_consecutive": "input return_inverse return_counts dim",
}


def _complete_slices(x: Entries, dim: int, name: str) -> Tensor:
    """Which slices are specified; one that is so in part can be compared with none."""
    others = tuple(d for d in range(x.mask.ndim) if d != dim % x.mask.ndim)
    complete = x.mask.all(others) if others else x.mask
    some = x.mask.any(others) if others else x.mask
    partial = some & ~complete
    if partial.any():
        raise UndefinedOnMaskedError(
            f"{name}(dim={dim})",
            f"{int(partial.sum())} slices along dimension {dim} are specified in part, the first at position "
            f"{int(partial.nonzero()[0])}, and whether two of them are equal is not known",
            "Choose complete slices first, as in x[x.mask.all(1)], or fill the gaps, x.filled(value).",
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
        if isinstance(found, Tensor):
            return Entries(found, mask_of(found))
        results = [Entries(part, mask_of(part)) for part in found]
        if arguments.get("return_inverse"):
            inverse = torch.zeros(present.shape, dtype=torch.int64, device=present.device)
            results[1] = Entries(inverse.masked_scatter(present, found[1]), present)
        return tuple(results)

    return body


def isin(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Whether each specified element is among the specified test elements; none of them contain nothing."""
    names = {"element": "elements", "test_element": "test_elements"}
    arguments = bound("elements test_elements", args, {names.get(k, k): v for k, v in kwargs.items()})
    elements, tests = arguments.pop("elements"), arguments.pop("test_elements")
    values = elements.values if isinstance(elements, Entries) else elements
    if not isinstance(tests, Entries):
        found = torch.isin(values, tests, **arguments)
        return Entries(found, elements.mask)
    flat, known = tests.values.reshape(-1), tests.mask.reshape(-1)
    if flat.numel():
        # an unspecified test element repeats a specified one: a set does not notice
        one = known.to(torch.uint8).argmax(0, keepdim=True)  # no number that a graph would have to know
        repeated = torch.where(known.gather(0, one), flat.gather(0, one), filler_as(flat.dtype, 0))
        flat = torch.where(known, flat, repeated)
        arguments.pop("assume_unique", None)
    found = torch.isin(values, flat, **arguments)
    nothing = torch.full_like(found, bool(arguments.get("invert", False)))
    found = torch.where(known.any(), found, nothing)
    return Entries(found, elements.mask if isinstance(elements, Entries) else mask_of(found))


DISTINCT = "fully specified; the inverse where the input is"

OPERATIONS = (
    *(record(name, "sorting", distinct(name), DISTINCT) for name in PARAMETERS),
    record("isin", "sorting", isin, "that of the elements"),
)
