"""Joins, padding and triangles: applied to values and pattern alike; plain tensors are fully specified.

Entries that an operation creates (the constants of padding, the zeros of ``tril`` and ``block_diag``) is specified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, Operand, mask_of, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.signatures import plain_arguments
from maskgrad.semantics.views import GRADIENT, PATTERN, pair


def join(function: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Entries:
    """Apply the called function to the values and to the masks of the sequence."""
    values, masks = [values_of(part) for part in tensors], [mask_of(part) for part in tensors]
    return Entries(function(values, *args, **kwargs), function(masks, *args, **kwargs))


def arrange(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the function (grids, products, common shapes) to the values of all operands, and to their masks."""
    in_sequence = len(args) == 1 and type(args[0]) in (list, tuple)
    operands = args[0] if in_sequence else args
    parts = [values_of(o) for o in operands], [mask_of(o) for o in operands]
    return pair(*(function(p, **kwargs) if in_sequence else function(*p, **kwargs) for p in parts))


def combinations(input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """``torch.combinations``: the combinations do not depend on the values."""
    return Entries(*(torch.combinations(part, *args, **kwargs) for part in input))


def block_diag(function: Callable[..., Any], *parts: Operand) -> Entries:
    """Blocks as separate arguments; the zeros around them are created, hence specified."""
    # applied to the holes: created zeros are none
    holes = function(*[mask_of(part).logical_not() for part in parts])
    return Entries(function(*map(values_of, parts)), holes.logical_not())


def pad(input: Entries, pad: Any, mode: str = "constant", value: float | None = None) -> Entries:
    """``F.pad`` in all its modes, negative widths (cropping) included."""
    values = F.pad(input.values, pad, mode, value)
    if mode == "constant":
        return Entries(values, F.pad(input.mask, pad, "constant", True))
    return Entries(values, F.pad(input.mask.float(), pad, mode) > 0.5)  # not implemented for Booleans


def constant_pad_nd(input: Entries, pad: Any, value: float = 0) -> Entries:
    """``constant_pad_nd``, the form that graphs use."""
    values = torch.constant_pad_nd(input.values, pad, value)
    return Entries(values, torch.constant_pad_nd(input.mask, pad, True))


def among_zeros(function: Callable[..., Any], input: Operand, *args: Any, **kwargs: Any) -> Any:
    """Apply the function to the values, and to the holes: where it creates a zero, there is no hole."""
    rest, options = plain_arguments(args, kwargs)
    if not isinstance(input, Entries):
        return function(input, *rest, **options)
    holes = function(input.mask.logical_not(), *rest, **options)
    return Entries(function(input.values, *rest, **options), holes.logical_not())


#: One operation a row, with its synonyms.
JOINS = "cat|concat|concatenate stack hstack vstack|row_stack dstack column_stack"
#: Called by Python functions of torch, so dispatched a second time.
_C: Any = torch._C._VariableFunctions

JOINED = "joined like the values", "split back to the parts"
CREATED = "moves with the values; zeros that are created are specified"
KEPT = "moves back with the values; none to created zeros"
PADDED = "moves with the values; constants are specified", "moves back; none to constants"

OPERATIONS = (
    *(record(names.replace("|", " "), "joins", join, *JOINED, padded="mask") for names in JOINS.split()),
    of_rule(block_diag, "joins", *JOINED),
    record("nn.functional.pad", "joins", pad, *PADDED, extra=(torch._C._nn.pad,), padded="mask"),
    of_rule(constant_pad_nd, "joins", *PADDED, padded="mask"),
    *(
        record(name, "views", among_zeros, CREATED, KEPT, padded=padded)
        for name, padded in (
            ("tril", "mask"),
            ("triu", "mask"),
            ("diag", "mask"),
            ("diag_embed", ""),
            ("diagflat", ""),
        )
    ),
    *(
        record(name, family, arrange, PATTERN, GRADIENT, extra=(getattr(_C, name),))
        for name, family in (
            ("meshgrid", "joins"),
            ("broadcast_tensors", "views"),
            ("cartesian_prod", "joins"),
        )
    ),
    of_rule(combinations, "joins", PATTERN, GRADIENT),
)
