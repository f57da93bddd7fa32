"""MaskedTensor as a pytree: transformations and graphs see two plain tensors, the values and the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import BooleanPattern

__all__ = ["install"]


def _flatten(x: MaskedTensor) -> tuple[list[Any], None]:
    return [x._values, x._pattern.mask], None


def _flatten_with_keys(x: MaskedTensor) -> tuple[list[tuple[pytree.KeyEntry, Any]], None]:
    return [(pytree.GetAttrKey("values"), x._values), (pytree.GetAttrKey("mask"), x._pattern.mask)], None


def _unflatten(leaves: Any, context: None) -> MaskedTensor:
    # Not checked: leaves may be placeholders of any type while a transformation is under way.
    values, mask = leaves
    return MaskedTensor(values, BooleanPattern(mask))


def install() -> None:
    """Register the class with torch's pytrees and with the loader of torch.load(weights_only=True)."""
    from maskgrad.masked_tensor import tensor

    pytree.register_pytree_node(
        MaskedTensor,
        _flatten,
        _unflatten,
        serialized_type_name="maskgrad.MaskedTensor",
        flatten_with_keys_fn=_flatten_with_keys,
    )
    torch.serialization.add_safe_globals([tensor.rebuild])
