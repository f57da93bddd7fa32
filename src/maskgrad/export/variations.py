"""Other inputs than the ones that were given, on which a file must agree with its model as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from maskgrad.export.ports import Ports

__all__ = ["variations"]

Tensors = tuple[Tensor, ...]


def variations(
    ports: Ports, tensors: Sequence[Tensor], varying: Sequence[Mapping[int, int]]
) -> Iterator[tuple[str, Tensors]]:
    """Each in words, and as plain tensors.

    Args:
        ports: what the tensors are.
        tensors: as given.
        varying: for each size that may vary, which tensors have it, and along which dimension.
    """
    given = tuple(tensors)

    def as_given(mask: Tensor) -> Tensor:
        return mask

    yield "as given, with garbage under the masks", _with_masks(ports, given, as_given)
    if any(t.dtype == torch.bool for t in given):
        yield "with nothing specified", _with_masks(ports, given, torch.zeros_like)
        yield "with everything specified", _with_masks(ports, given, torch.ones_like)
        yield "with what was not specified", _with_masks(ports, given, torch.logical_not)
    stored = [place.kind == "stored" for place in ports.places for _ in place.roles]
    for places in varying:
        tensor, dimension = next(iter(places.items()))
        size = given[tensor].shape[dimension]
        if not any(stored[i] for i in places):
            for number in {1, size + 1} - {size} if size else ():
                words = f"with size {number} instead of {size} of what may vary"
                yield words, _with_masks(ports, _resized(given, places, number), as_given)
    if any(stored[i] for places in varying for i in places):
        yield "with one stored entry less", _with_masks(ports, _with_one_entry_less(ports, given), as_given)


def _with_one_entry_less(ports: Ports, tensors: Tensors) -> Tensors:
    """Coordinates say nothing about each other; of the other layouts the pointers would have to change as well."""
    changed: list[Tensor] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.kind == "stored" and place.facts is not None and place.facts.layout == "sparse_coo":
            values, indices = group
            changed += [values[:-1], indices[:, :-1]]
        else:
            changed += group
    return tuple(changed)


def _with_masks(ports: Ports, tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """Other masks, those that are plain Boolean arguments among them; garbage under the new ones."""
    changed: list[Tensor] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.kind == "masked":
            values, mask = group
            new = change(mask)
            kept = torch.where(mask, values, _ordinary(values, mask))
            changed += [torch.where(new, kept, _garbage(values)), new]
        else:
            changed += [change(t) if t.dtype == torch.bool else t for t in group]
    return tuple(changed)


def _ordinary(values: Tensor, mask: Tensor) -> Tensor:
    """A number that may stand where none is specified now: the first that is."""
    specified = values[mask]
    return specified[0] if specified.numel() else torch.ones((), dtype=values.dtype, device=values.device)


def _garbage(values: Tensor) -> Tensor:
    dtype = values.dtype
    if dtype == torch.bool:
        return torch.ones((), dtype=dtype, device=values.device)
    worst = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full((), worst, dtype=dtype, device=values.device)


def _resized(tensors: Tensors, places: Mapping[int, int], number: int) -> Tensors:
    """Each with ``number`` samples, the first ones again if there are too few."""
    resized = list(tensors)
    for i, at in places.items():
        chosen = torch.arange(number, device=tensors[i].device) % tensors[i].shape[at]
        resized[i] = tensors[i].index_select(at, chosen)
    return tuple(resized)
