"""Joins, padding and triangles: values and pattern are put together alike; plain tensors count as fully specified.

What an operation creates itself (the constants of padding, the zeros of ``tril`` and ``block_diag``) is specified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, mask_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.plain_arguments import plain_arguments
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from collections.abc import Callable


def join(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Apply the function that was called to the values and to the masks of the sequence."""
    named = dict(kwargs)
    parts, *rest = args if args else (named.pop("tensors"),)
    values = [part.values if isinstance(part, Entries) else part for part in parts]
    return Entries(
        function(values, *rest, **named), function([mask_of(part) for part in parts], *rest, **named)
    )


def block_diag(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Blocks, each an argument of its own; the zeros around them are made here, hence specified."""
    values = function(*[part.values if isinstance(part, Entries) else part for part in args])
    # joined as holes: what comes from no block is none
    return Entries(values, function(*[mask_of(part).logical_not() for part in args]).logical_not())


def pad(input: Entries, pad: Any, mode: str = "constant", value: float | None = None) -> Entries:
    """``F.pad`` in all its modes, negative widths (cropping) included."""
    values = F.pad(input.values, pad, mode, value)
    # the other modes are not implemented for Booleans
    mask = (
        F.pad(input.mask, pad, "constant", True)
        if mode == "constant"
        else F.pad(input.mask.float(), pad, mode) > 0.5
    )
    return Entries(values, mask)


def constant_pad_nd(input: Entries, pad: Any, value: float = 0) -> Entries:
    """``constant_pad_nd``, the form that graphs use."""
    values = torch.constant_pad_nd(input.values, pad, value)
    return Entries(values, torch.constant_pad_nd(input.mask, pad, True))


def among_zeros(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the function to the values, and to the holes: where it creates a zero, there is no hole."""
    named = dict(kwargs)
    x, *others = args if args else (named.pop("input"),)
    rest, named = plain_arguments(others, named)
    if not isinstance(x, Entries):
        return function(x, *rest, **named)
    return Entries(
        function(x.values, *rest, **named), function(x.mask.logical_not(), *rest, **named).logical_not()
    )


JOINS = (
    "cat concat concatenate",
    "stack",
    "hstack",
    "vstack row_stack",
    "dstack",
    "column_stack",
    "block_diag",
)

CREATED = "moves with the values; zeros that are created are specified"
PADDED = "moves with the values; constants are specified"

OPERATIONS = (
    *(
        record(
            names,
            "joins",
            block_diag if names == "block_diag" else join,
            "joined like the values",
            "split back to the parts",
        )
        for names in JOINS
    ),
    record(
        "nn.functional.pad",
        "joins",
        named(pad),
        PADDED,
        "moves back; none to constants",
        extra=(torch._C._nn.pad,),
    ),
    record("constant_pad_nd", "joins", named(constant_pad_nd), PADDED, "moves back; none to constants"),
    *(
        record(name, "views", among_zeros, CREATED, "moves back with the values; none to created zeros")
        for name in ("tril", "triu", "diag", "diag_embed", "diagflat")
    ),
)
