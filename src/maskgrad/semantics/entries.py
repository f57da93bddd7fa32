"""The data of semantic rules: values, and which of them are specified.

Masked values must not be read, and are replaced before a function sees them: an unspecified result has the gradient 0,
but 0 * inf is NaN, and so is 0 times a derivative that is infinite at a masked value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.kernel import HALVES as HALVES
from maskgrad.kernels.smallest import intersected

Filler = float | int | bool

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Entries(NamedTuple):
    """Values and the Boolean mask of the same shape that says which of them are specified.

    The values under the mask are arbitrary: a rule must let none of them, not even a NaN, reach a
    specified result or a gradient.
    """

    values: Tensor
    mask: Tensor


def widened(values: Tensor) -> Tensor:
    """Cast half precision to float32; return others unchanged."""
    return values.float() if values.dtype in HALVES else values


#: A masked or a plain tensor.
Operand = Entries | torch.Tensor


def values_of(operand: Operand) -> Tensor:
    """The values, with arbitrary content under the mask."""
    return operand.values if isinstance(operand, Entries) else operand


def safe(operand: Any) -> Any:
    """The values with zeros under the mask, which take no part in a sum of products."""
    return fill(operand, operand.mask, 0) if isinstance(operand, Entries) else operand


def rearranged(operand: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``move`` to values and mask, or to a plain tensor."""
    return (
        Entries(move(operand.values), move(operand.mask)) if isinstance(operand, Entries) else move(operand)
    )


def mask_of(operand: Operand) -> Tensor:
    """The operand's mask; a plain tensor is fully specified (one expanded True)."""
    if isinstance(operand, Entries):
        return operand.mask
    return torch.ones((), dtype=torch.bool, device=operand.device).expand(operand.shape)


def converted(operand: Operand, dtype: torch.dtype) -> Any:
    """The operand in another dtype."""
    if isinstance(operand, Entries):
        return Entries(operand.values.to(dtype), operand.mask)
    return operand.to(dtype)


def as_entries(operand: Operand) -> Entries:
    """Convert a masked or plain operand to entries."""
    return operand if isinstance(operand, Entries) else Entries(operand, mask_of(operand))


def intersection(operands: Iterable[Any]) -> Tensor | None:
    """The mask of an elementwise result: True where every masked operand is specified (broadcast)."""
    mask = None
    for operand in operands:
        if isinstance(operand, Entries):
            mask = operand.mask if mask is None else intersected(mask, operand.mask)
    return mask


def all_specified(*operands: Any) -> Tensor:
    """The same if at least one operand is masked, as dispatch ensures."""
    mask = intersection(operands)
    assert mask is not None
    return mask


def filled(operand: Any, filler: Filler = 0) -> Any:
    """A masked operand's values with ``filler`` under its own mask; anything else unchanged."""
    if not isinstance(operand, Entries):
        return operand
    return kernels.filled(operand.values, operand.mask, filler_as(operand.values.dtype, filler))


def chosen(mask: Tensor, values: Tensor, other: Any) -> Tensor:
    """``torch.where``, also for unsigned integers, of which PyTorch 2.12 supports only uint8."""
    signed = _SIGNED.get(values.dtype)
    if signed is None or torch.result_type(values, other) is not values.dtype:
        return torch.where(mask, values, other)
    if not isinstance(other, torch.Tensor):
        other = torch.tensor(other, dtype=values.dtype, device=values.device)
    return torch.where(mask, values.view(signed), other.to(values.dtype).view(signed)).view(values.dtype)


def filler_as(dtype: torch.dtype, filler: Filler) -> Filler:
    """The filler in the category of ``dtype``, so that filling never promotes."""
    if dtype.is_floating_point or dtype.is_complex:
        return filler
    return bool(filler) if dtype == torch.bool else int(filler)


def fill(operand: Any, mask: Tensor, filler: Filler) -> Any:
    """The operand's values with entries outside ``mask`` replaced by a safe constant.

    Operands are made safe *before* a function sees them, and by the mask of the *result*: no NaN
    arises forward, none backward, and a product with an operand that is specified, but infinite
    next to an unspecified one, cannot produce 0 * inf in the backward pass.
    A 0-dim operand keeps its rank (type promotion treats it differently): its own mask decides.
    """
    if isinstance(operand, Entries):
        values, own = operand
        if values.ndim == 0 and mask.ndim > 0:
            mask = own
    elif isinstance(operand, torch.Tensor):
        values = operand
        if values.ndim == 0 and mask.ndim > 0:
            return values
    else:
        return operand
    return kernels.filled(values, mask, filler_as(values.dtype, filler))


def is_position_by_position(mask: Tensor, operands: Iterable[Any]) -> bool:
    """Return whether an elementwise function combines entries at the same position only (no broadcasting).

    Its gradient can then be selected after the function in a graph, instead of its input before: no other gradient
    depends on it.
    """
    for operand in operands:
        if isinstance(operand, (Entries, torch.Tensor)):
            values = values_of(operand)
            if not values.is_floating_point() or values.shape != mask.shape:
                return False
    return True


def with_gradient_at(mask: Tensor, operand: Any) -> Any:
    """The operand's values unchanged, with gradients only where ``mask`` holds."""
    if not isinstance(operand, (Entries, torch.Tensor)):
        return operand
    values = values_of(operand)
    if not (values.requires_grad and torch.is_grad_enabled()):
        return values
    return torch.ops.maskgrad.with_gradient_at(values, mask)


def specified(values: Any, mask: Tensor) -> Any:
    """Attach ``mask`` to one result, or to each of a tuple of results."""
    if isinstance(values, torch.Tensor):
        return Entries(values, mask if mask.shape == values.shape else mask.expand(values.shape))
    if isinstance(values, tuple):
        # named tuples of torch (torch.return_types.*) are built from one sequence
        parts = [specified(value, mask) for value in values]
        return tuple(parts) if type(values) is tuple else type(values)(parts)
    return values
