"""Losses that compare operands position by position: over the positions at which all of them have an entry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.losses import OPERATIONS
from maskgrad.semantics.losses.reduction import quotient
from maskgrad.semantics.losses.regression import forgotten_weight
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.elementwise import aligned
from maskgrad.semantics.stored.entries import StoredEntries, exploded, is_masked, shape_of
from maskgrad.semantics.stored.views import unsqueeze

__all__ = ["by_position", "named_arguments"]

#: PyTorch warns about operands of two shapes, or refuses them.
ONE_SHAPE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
#: The names of the arguments of each, which graphs cannot read.
NAMES = {
    o.name: tuple(inspect.signature(getattr(F, o.name.removeprefix("nn.functional."))).parameters)
    for o in OPERATIONS
    if o.by_position
}


def named_arguments(
    operation: Operation, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a loss by their names."""
    name = operation.name.removeprefix("nn.functional.")
    if function is not getattr(F, name):  # torch.kl_div, …: the internal twins
        raise UnsupportedLayoutError(f"torch.{name}", torch.sparse_coo)
    given = paired(NAMES[operation.name], args) | kwargs
    if name == "l1_loss" and given.get("weight") is None:
        given["weight"] = forgotten_weight()
    return given


def by_position(operation: Operation) -> Callable[..., Any]:
    """The rule of a loss for Boolean masks, applied to the entries that all operands have."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = named_arguments(operation, function, args, kwargs)
        shapes = [shape_of(given.get(key)) for key in ("input", "target")]
        if operation.name.removeprefix("nn.functional.") in ONE_SHAPE and all(shapes):
            function(*(torch.empty(shape, device="meta") for shape in shapes))
        if shape_of(given.get("var")) and shape_of(given["var"]) == shape_of(given["input"])[:-1]:
            given["var"] = unsqueeze(given["var"], -1)
        operands = {key: x for key, x in given.items() if is_masked(x) or isinstance(x, Tensor)}
        values, wrap = aligned(list(operands.values()))
        found = {
            key: as_entries(value) if is_masked(x) else value
            for (key, x), value in zip(operands.items(), values, strict=True)
        }
        if not any(map(shape_of, operands.values())):  # numbers, of which the stored ones have become lists
            listed = next(value.values.shape for value in found.values() if isinstance(value, Entries))
            found = {key: x if isinstance(x, Entries) else x.expand(listed) for key, x in found.items()}
        by_row = given.get("reduction") == "batchmean"
        result = operation.body(function, (), given | found | ({"reduction": "none"} if by_row else {}))
        if not isinstance(result, Entries) or not result.values.ndim:
            return result
        positions = wrap(result.values)
        return _mean_of_rows(positions) if by_row else positions

    return body


def _mean_of_rows(positions: StoredEntries) -> Tensor:
    """The total divided by the number of rows with an entry; NaN if there are none."""
    coordinates, entries, _ = exploded(positions)
    rows = torch.unique(coordinates[0]).shape[0]
    known = torch.full((), bool(rows), device=entries.device)
    return quotient(
        Entries(entries.sum(), known), torch.as_tensor(rows, device=entries.device), entries.dtype
    )
