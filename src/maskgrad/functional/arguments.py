"""Checks and documentation of the arguments shared by all masked functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from maskgrad.other_data import conversion_of, has_own_mask
from maskgrad.patterns.mask_arguments import check_mask
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.numbers import number, over_everything, plain

Dim = int | tuple[int, ...] | list[int] | None
Dtype = torch.dtype | None
Mask = Tensor | None
P = ParamSpec("P")

SHARED = """

    Args:
        input: plain tensor of any shape.
        dim: dimension(s) to work along, counted from either end; None, where allowed, for all.
        keepdim: keep reduced dimensions with size 1.
        dtype: dtype to compute in and to return.
        mask: Boolean tensor (or integers 0 and 1), True = specified, with the dimensions of ``input``, size 1 where it
            repeats; None: all specified.

    Returns:
        Plain tensor of the shape that torch's function gives. Gradient: exactly 0 at unspecified entries, and from
        results of which nothing is specified.

    Raises:
        TypeError: ``input`` is not a plain tensor, or ``mask`` is not one of Booleans or integers.
        ValueError: ``mask`` contains other integers, has fewer dimensions than ``input``, does not broadcast to it, or
            is on another device.
        IndexError: ``dim`` is out of range.

    Source: https://docs.pytorch.org/docs/stable/masked.html (names and signatures).
"""


def tabulated(
    function: Callable[Concatenate[Any, Any, P], Tensor],
    rule: Callable[..., Entries],
    nothing: float | None,
    name: str,
    summary: str,
    gradient: str,
    dense: str,
    data: str,
    result: str,
    further: str = "",
) -> Callable[P, Tensor]:
    """A row of the table, documented with an example whose second entry is unspecified; ``further``: its arguments."""

    def row(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return function(rule, nothing, *args, **kwargs)

    signature = inspect.signature(function)
    row.__signature__ = signature.replace(parameters=[*signature.parameters.values()][2:])  # type: ignore[attr-defined]
    data = data.replace("nan", 'float("nan")')
    row.__name__ = row.__qualname__ = name
    row.__module__ = function.__module__
    row.__doc__ = (
        f"{summary}\n\n"
        + (f"    Gradient: {gradient}.\n" if gradient else "")
        + (f"    Dense equivalent: ``{dense}``, for each result.\n" if dense else "")
        + "\n    Example:\n"
        + f"        >>> {name}(torch.tensor([{data}]){further}, mask=torch.tensor([True, False, True]))\n"
        + f"        {result}\n"
        + SHARED
    )
    return row


def entries_of(input: object, mask: Mask, dtype: Dtype = None, name: str = "mask") -> Entries:
    """The plain ``input`` and its mask as entries, in ``dtype`` if given."""
    if not isinstance(input, Tensor) or input.layout != torch.strided or has_own_mask(input):
        is_ours = type(input).__module__.startswith("maskgrad")
        remedy = (
            f"use {'' if is_ours else conversion_of(input, 'input') + ', or '}the methods of a MaskedTensor"
        )
        raise TypeError(f"input must be a plain torch.Tensor, found {type(input).__name__}; {remedy}")
    values = input if dtype is None else input.to(dtype)
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=input.device)
    return Entries(values, check_mask(mask, values.shape, values.device, name))


def reduced(result: Entries, dim: Dim, nothing: float) -> Tensor:
    """The values of a reduction, or ``nothing`` where nothing is specified."""
    return (number if result.values.ndim == 0 and over_everything(dim) else plain)(result, nothing)
