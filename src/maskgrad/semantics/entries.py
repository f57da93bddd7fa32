"""What the rules of meaning work on: values, and which of them are specified.

What lies under a mask must not be read, and is replaced before a function sees it. It is often harmless, and one look
is cheaper than replacing it: a result that is not specified has the gradient 0, exactly; so an operand under the mask
can disturb others only as a partner of that 0, where 0 * inf is NaN. If a look shows that the numbers are finite (and
of a size at which derivatives are finite, too), nothing needs to be replaced. Looking reads the numbers once; replacing
them reads and writes them, and the gradient again. Where no look is possible (in a graph, under a transform, on another
device), they are replaced.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels import masked_filling
from maskgrad.kernels.kernel import HALVES as HALVES
from maskgrad.kernels.smallest import all_of, intersected
from maskgrad.patterns.eager import can_read_values

Filler = float | int | bool

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

#: Entries from which the compiled selection is worth a question; small tensors, whose calls count, are not asked.
LARGE = masked_filling.min_numel


class Entries(NamedTuple):
    """Values and the Boolean mask of the same shape that says which of them are specified.

    The values under the mask are arbitrary: a rule must let none of them, not even a NaN, reach a
    specified result or a gradient.
    """

    values: Tensor
    mask: Tensor


def widened(values: Tensor) -> Tensor:
    """Halves in float32, everything else as it is."""
    return values.float() if values.dtype in HALVES else values


#: A masked or a plain tensor.
Operand = Entries | torch.Tensor


def values_of(operand: Operand) -> Tensor:
    """The values, whatever lies under the mask."""
    return operand.values if isinstance(operand, Entries) else operand


def safe(operand: Any) -> Any:
    """The values with zeros under the mask, which take no part in a sum of products."""
    return fill(operand, operand.mask, 0) if isinstance(operand, Entries) else operand


def rearranged(operand: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """What ``move`` makes of values and mask, or of a plain tensor."""
    return (
        Entries(move(operand.values), move(operand.mask)) if isinstance(operand, Entries) else move(operand)
    )


def mask_of(operand: Operand) -> Tensor:
    """The operand's mask; a plain tensor is fully specified, by one expanded Boolean."""
    if isinstance(operand, Entries):
        return operand.mask
    return torch.ones((), dtype=torch.bool, device=operand.device).expand(operand.shape)


def converted(operand: Operand, dtype: torch.dtype) -> Any:
    """The operand in another dtype."""
    if isinstance(operand, Entries):
        return Entries(operand.values.to(dtype), operand.mask)
    return operand.to(dtype)


def as_entries(operand: Operand) -> Entries:
    """The operand as entries, whether it is masked or plain."""
    return operand if isinstance(operand, Entries) else Entries(operand, mask_of(operand))


def intersection(operands: Iterable[Any]) -> Tensor | None:
    """The mask of an elementwise result: True where every masked operand is specified (broadcast)."""
    mask = None
    for operand in operands:
        if isinstance(operand, Entries):
            mask = operand.mask if mask is None else intersected(mask, operand.mask)
    return mask


def all_specified(*operands: Any) -> Tensor:
    """The same for operands of which at least one is masked, as dispatch makes sure."""
    mask = intersection(operands)
    assert mask is not None
    return mask


def filled(operand: Any, filler: Filler = 0) -> Any:
    """A masked operand's values with ``filler`` under its own mask; anything else as it is."""
    if not isinstance(operand, Entries):
        return operand
    return torch.where(operand.mask, operand.values, filler_as(operand.values.dtype, filler))


def chosen(mask: Tensor, values: Tensor, other: Any) -> Tensor:
    """``torch.where``, for unsigned integers too, of which PyTorch 2.12 selects only the shortest."""
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
    """The operand's values with everything outside ``mask`` replaced by a safe constant.

    Operands are made safe *before* a function sees them, and by the mask of the *result*: no NaN
    arises forward, none backward, and a product with an operand that is specified, but infinite
    next to an unspecified one, cannot produce 0 * inf in the backward pass.
    A 0-dim operand keeps its rank (it takes part in type promotion differently): its own mask decides.
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
    constant = filler if values.dtype.is_floating_point else filler_as(values.dtype, filler)
    if torch.compiler.is_compiling():  # asked for first, because a graph must not depend on a size
        if values.shape == mask.shape:
            return masked_filling(values, mask, constant)
    elif mask.numel() >= LARGE:
        if values.shape != mask.shape:
            shape = torch.broadcast_shapes(values.shape, mask.shape)
            values, mask = values.expand(shape), mask.expand(shape)
        return masked_filling(values, mask, constant)
    return torch.where(mask, values, constant)


def in_a_graph() -> bool:
    """Whether torch.compile traces, and neither exports nor transforms."""
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and not torch._C._are_functorch_transforms_active()
    )


def is_position_by_position(mask: Tensor, operands: Iterable[Any]) -> bool:
    """Whether each number of the operands of an elementwise function meets those of its own position only, in a graph.

    Its gradient can be selected after the function then, instead of the number before it: no other gradient is
    computed from it.
    """
    if not in_a_graph():
        return False
    for operand in operands:
        if isinstance(operand, (Entries, torch.Tensor)):
            values = values_of(operand)
            if not values.is_floating_point() or values.shape != mask.shape:
                return False
    return True


def with_gradient_at(mask: Tensor, operand: Any) -> Any:
    """The operand's values as they are, with gradients exactly where ``mask`` holds."""
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


#: The squares of numbers add up to less than this: none is above 1e9, so that its fourth power is finite.
MODERATE = 1e18


def is_complete(mask: Tensor) -> bool:
    """Whether a look at a mask is possible, and shows that every entry is specified."""
    return can_read_values(mask) and all_of(mask)


def is_finite(values: Tensor) -> bool:
    """Whether a look is possible, and shows that no number is infinite or NaN; a sum that overflows shows nothing."""
    return can_read_values(values) and adds_up_to_finite(values)


def adds_up_to_finite(values: Tensor) -> bool:
    """:func:`is_finite` for numbers that may be looked at."""
    total = values.detach().sum(dtype=torch.float32 if values.dtype in HALVES else None)
    return bool(cmath.isfinite(total.item()))


def is_moderate(*tensors: Tensor) -> bool:
    """Whether a look is possible, costs no copy, and shows that no number is above 1e9."""
    if not can_read_values(*tensors):
        return False
    for values in tensors:
        if values.dtype not in (torch.float32, torch.float64) or not values.is_contiguous():
            return False
        flat = values.detach().view(-1)
        if not flat.dot(flat).item() < MODERATE:
            return False
    return True
