"""Padding: the constants that it creates are specified; what it repeats keeps its mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS"]


def pad(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.pad`` in all its modes, negative widths (cropping) included."""
    arguments = bound("input pad mode value", args, kwargs)
    x, mode = arguments["input"], arguments.get("mode", "constant")
    widths, value = arguments["pad"], arguments.get("value")
    values = F.pad(x.values, widths, mode, value)
    # the other modes are not implemented for Booleans
    mask = (
        F.pad(x.mask, widths, "constant", True)
        if mode == "constant"
        else F.pad(x.mask.float(), widths, mode) > 0.5
    )
    return Entries(values, mask)


def constant_pad_nd(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``constant_pad_nd``, the form that graphs use."""
    arguments = bound("input pad value", args, kwargs)
    x, widths = arguments["input"], arguments["pad"]
    values = torch.constant_pad_nd(x.values, widths, arguments.get("value", 0))
    return Entries(values, torch.constant_pad_nd(x.mask, widths, True))


PATTERN = "moves with the values; constants are specified"
GRADIENT = "moves back; none to constants"
OPERATIONS: tuple[Operation, ...] = (
    record("nn.functional.pad", "joins", pad, PATTERN, GRADIENT, extra=(torch._C._nn.pad,)),
    record("constant_pad_nd", "joins", constant_pad_nd, PATTERN, GRADIENT),
)
