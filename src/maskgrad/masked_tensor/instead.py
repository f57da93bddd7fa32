"""Names of functions in messages, and remedies for functions that MaskedTensors do not support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.mode import TRACED, mode

__all__ = ["BY_ATTRIBUTE", "instead_of", "name_of"]

#: Attributes of pandas, numpy.ma and other libraries, and what to write instead.
BY_ATTRIBUTE = {
    **dict.fromkeys(("fillna", "fill_null", "fill_value"), "x.filled(0.)"),
    **dict.fromkeys(("isna", "isnull", "is_null"), "~x.mask"),
    **dict.fromkeys(("notna", "notnull", "is_specified", "specified", "valid", "valid_mask"), "x.mask"),
    **dict.fromkeys(
        ("dropna", "drop_nulls"), "x[x.mask.all(1)] for complete rows, x.compressed() for entries"
    ),
    "count": "x.mask.sum(0), or x.num_specified()",
    "average": "x.mean(), or (x * w).sum() / (x * 0 + w).sum()",
    "astype": "x.to(torch.float64)",
    "copy": "x.clone()",
    "to_list": "x.tolist()",
    "to_pandas": "mg.interop.to_pandas(x)",
    "to_polars": "mg.interop.to_polars(x)",
    "to_arrow": "mg.interop.to_arrow(x)",
    "to_nested": "mg.interop.to_nested(x.to_jagged())",
    **dict.fromkeys(("masked_mean", "nan_mean"), "x.mean()"),
    "masked_sum": "x.sum()",
}

#: Remedy by the function's name in messages.
BY_NAME = {
    "torch.Tensor.to_padded_tensor": "Write x.filled(0.).",
    "torch.Tensor.numpy": "Write x.to_numpy() for a numpy.ma array, or x.filled(float('nan')).numpy() for libraries "
    "that support NaN.",
    "torch.Tensor.storage": "Write x.get_data().storage() for the memory of the values; that of the mask is x.mask's.",
    "torch.Tensor.untyped_storage": "Write x.get_data().untyped_storage() for the memory of the values; that of the "
    "mask is x.mask's.",
    "torch.Tensor.__setitem__": "A plain tensor is written at plain positions, with plain values: write "
    "y[index.compressed()] = value, y[index] = value.filled(0.), or y = mg.masked(y) before it.",
    "torch.Tensor.apply_": "Write mg.masked(x.filled(0).apply_(function), x.mask).",
    "torch.Tensor.map_": "Write mg.masked(x.filled(0).map_(y.filled(0), function), x.mask & y.mask).",
    "torch.Tensor.set_": "Write x.data = y for other entries under the same name.",
    "torch.sparse.spdiags": "Write mg.masked(torch.sparse.spdiags(x.filled(0), …).to_dense(), mask), with the mask "
    "made in the same way of x.mask.float(), and > 0.",
    "torch.Tensor.module_load": "A parameter is a plain tensor: load its values, and its mask as a buffer.",
}
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
    if name in BY_NAME:
        return BY_NAME[name]
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
    for name, known in vars(torch.sparse).items():  # under names of their own there
        if known is function:
            return f"torch.sparse.{name}"
    return str(torch.overrides.resolve_name(function) or getattr(function, "__qualname__", repr(function)))
