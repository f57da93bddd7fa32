"""Conversions: dtype, device, memory. The pattern is kept; gradients pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from maskgrad.semantics.entries import Entries, values_of
from maskgrad.semantics.facts import Operation, record


def convert(function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert the values with the function that was called; the mask moves to their device."""
    rest, named = [values_of(a) for a in args], {k: values_of(a) for k, a in kwargs.items()}
    if not isinstance(x, Entries):  # plain.to(masked): only dtype and device of the other are used
        return function(x, *rest, **named)
    values = function(x.values, *rest, **named)
    if not isinstance(values, Tensor):  # .type() without arguments returns the name of the dtype
        return values
    mask = x.mask
    if mask.device != values.device:
        mask = mask.to(values.device, non_blocking=bool(named.get("non_blocking", False)))
    return Entries(values, mask)


def clone(input: Entries, **kwargs: Any) -> Entries:
    """A copy of values and mask."""
    return Entries(input.values.clone(**kwargs), input.mask.clone())


def contiguous(input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """Contiguous values; the mask may stay an expanded view."""
    return Entries(input.values.contiguous(*args, **kwargs), input.mask)


def _record(name: str, body: Callable[..., Any] = convert) -> Operation:
    return record(name, "conversion", body, "unchanged", "passes, in the operand's dtype")


CONVERSIONS = """
    to type type_as cpu cuda pin_memory
    float double half bfloat16 int long short char byte bool cfloat cdouble chalf
"""

OPERATIONS = (
    *(_record(name) for name in CONVERSIONS.split()),
    _record("clone", clone),
    _record("contiguous", contiguous),
)


def ask(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return properties such as size and storage of the values."""
    return function(*map(values_of, args), **{k: values_of(a) for k, a in kwargs.items()})


QUESTIONS = """
    size dim ndimension numel nelement element_size stride storage_offset is_contiguous data_ptr get_device
    is_floating_point is_complex is_signed is_conj is_neg is_inference is_same_size can_cast is_pinned is_shared
"""

METADATA = tuple([record(name, "metadata", ask, "none") for name in (*QUESTIONS.split(), "result_type")])
