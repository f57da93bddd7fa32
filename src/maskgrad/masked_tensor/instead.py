"""Names of functions in messages, and remedies for functions that MaskedTensors do not support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.instead import INSTEAD
from maskgrad.mode import TRACED, mode

__all__ = ["instead_of", "name_of"]

#: Collectives that mg.distributed has for MaskedTensors, too.
COLLECTIVES = ("all_reduce",)
OPERATOR = (
    "A custom operator sees plain tensors only: derive a mg.Function from its forward and backward pass, or pass "
    "x.filled(value)."
)
QUANTIZED = (
    "An operator with quantized weights sees plain tensors only: give the module x.filled(0) and x.mask apart, or "
    "leave it out of the quantization."
)
COLLECTIVE = (
    "Write torch.distributed.{name} of x.filled(0) and of x.mask, or mg.distributed.all_reduce(x) for a sum."
)


def instead_of(function: Any, name: str) -> str:
    """Return the line to write instead of ``function``, called ``name`` in messages; empty if the table has none."""
    if name in INSTEAD["functions"]:
        return INSTEAD["functions"][name]
    if name.startswith("quantized."):
        return QUANTIZED
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return OPERATOR
    if getattr(function, "__module__", "").startswith("torch.distributed"):
        if name in COLLECTIVES:
            return f"Write mg.distributed.{name}(x)."
        return COLLECTIVE.format(name=name)
    return ""


def name_of(function: Any) -> str:
    """Return the public name of a function of torch, as messages call it."""
    if function in (Tensor.__dlpack__, Tensor.__dlpack_device__):
        return "torch.tensor(x), torch.as_tensor(x) or another reader of DLPack"
    if mode() in TRACED:  # resolve_name cannot be traced
        return str(getattr(function, "__qualname__", function))
    # under names of their own there
    for name, known in (*vars(torch.sparse).items(), ("sum", torch._sparse_sum)):
        if known is function:
            return f"torch.sparse.{name}"
    return str(torch.overrides.resolve_name(function) or getattr(function, "__qualname__", repr(function)))
