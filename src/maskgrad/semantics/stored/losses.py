"""Losses that compare operands position by position: over the positions at which all of them have an entry."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.losses.reduction import quotient
from maskgrad.semantics.losses.regression import forgotten_weight
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.elementwise import aligned
from maskgrad.semantics.stored.entries import StoredEntries, is_masked, shape_of
from maskgrad.semantics.stored.groups import grouped
from maskgrad.semantics.stored.reductions import over_groups, total
from maskgrad.semantics.stored.views import unsqueeze

__all__ = ["by_position"]

#: PyTorch warns about operands of two shapes, or refuses them.
WARNED, REFUSED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), ("binary_cross_entropy",)


def by_position(operation: Operation) -> Callable[..., Any]:
    """The rule of a loss for Boolean masks, applied to the entries that all operands have."""
    name = operation.name.removeprefix("nn.functional.")
    names = tuple(inspect.signature(getattr(F, name)).parameters)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is not getattr(F, name):  # torch.kl_div, …: the internal twins
            raise UnsupportedLayoutError(f"torch.{name}", torch.sparse_coo)
        given = paired(names, args) | kwargs
        if name == "l1_loss" and given.get("weight") is None:
            given["weight"] = forgotten_weight()
        _check_shapes(name, shape_of(given.get("input")), shape_of(given["target"]))
        if name == "gaussian_nll_loss":
            given["var"] = _variance(given["var"], given["input"])
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


def _check_shapes(name: str, a: torch.Size, b: torch.Size) -> None:
    if a == b or not a or not b:
        return
    if name.startswith(REFUSED):
        raise ValueError(f"Target size ({b}) must be the same as input size ({a})")
    if name in WARNED:
        warnings.warn(
            f"Using a target size ({b}) that is different to the input size ({a}). This will likely lead to incorrect "
            "results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )


def _variance(var: Any, input: Any) -> Any:
    if not is_masked(var) and not isinstance(var, Tensor):
        return var
    values = var.values if is_masked(var) else var
    if isinstance(var, (StoredEntries, Tensor)) and can_read(values) and bool((values < 0).any()):
        raise ValueError("var has negative entry/entries")
    if shape_of(var) and shape_of(var) == shape_of(input)[:-1]:
        return unsqueeze(var, -1) if isinstance(var, StoredEntries) else var.unsqueeze(-1)
    return var


def _mean_of_rows(positions: StoredEntries) -> Tensor:
    """The total divided by the number of rows with an entry; NaN if there are none."""
    summed, others = over_groups(total)(positions), tuple(range(1, len(positions.shape)))
    rows = grouped(positions, others)[0].number if others else positions.entries.shape[0]
    divisor = torch.as_tensor(rows, device=summed.mask.device)
    return quotient(summed, divisor, summed.values.dtype)
