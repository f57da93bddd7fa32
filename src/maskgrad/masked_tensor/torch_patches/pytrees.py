"""MaskedTensor as a pytree: transformations and graphs see two plain tensors, the values and the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import Facts
from maskgrad.patterns.conversion import pattern_of_facts

__all__ = ["install"]


NAMES = {"strided": ("values", "mask"), "jagged": ("values", "offsets", "index", "frame")}


def _flatten(x: MaskedTensor) -> tuple[list[Any], Facts]:
    return [x._values, *x._pattern.tensors()], x._pattern.facts()


def _flatten_with_keys(x: MaskedTensor) -> tuple[list[tuple[pytree.KeyEntry, Any]], Facts]:
    leaves, facts = _flatten(x)
    names = NAMES.get(facts.layout, ("values", "indices", "positions"))
    keyed: list[tuple[pytree.KeyEntry, Any]] = [
        (pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=False)
    ]
    return keyed, facts


def _unflatten(leaves: Any, facts: Facts) -> MaskedTensor:
    values, *tensors = leaves
    # Leaves of any other type are placeholders, while a transformation is under way.
    if facts.layout == "strided" and type(values) is Tensor and type(tensors[0]) is Tensor:
        _check_parts(values, tensors[0])
    return MaskedTensor(values, pattern_of_facts(facts, tuple(tensors)))


def _check_parts(values: Tensor, mask: Tensor) -> None:
    """Refuse what became of a MaskedTensor whose parts were treated one by one, each as a tensor for itself."""
    if mask.dtype != torch.bool or mask.shape != values.shape:
        raise ValueError(
            "a MaskedTensor was taken apart as a pytree, and what was done to its parts does not fit together: values "
            f"of shape {tuple(values.shape)}, and a mask of shape {tuple(mask.shape)} and {mask.dtype}. Apply the "
            "function to the MaskedTensor itself, tree_map(f, tree, is_leaf=lambda x: isinstance(x, mg.MaskedTensor)), "
            "or to x.filled(value)"
        )


def _dump(facts: Facts) -> list[Any]:
    return list(facts)


def _load(data: list[Any]) -> Facts:
    layout, sizes, blocksize = data
    return Facts(layout, tuple(sizes), None if blocksize is None else (blocksize[0], blocksize[1]))


def install() -> None:
    """Register the class with torch's pytrees."""
    pytree.register_pytree_node(
        MaskedTensor,
        _flatten,
        _unflatten,
        serialized_type_name="maskgrad.MaskedTensor",
        flatten_with_keys_fn=_flatten_with_keys,
        to_dumpable_context=_dump,
        from_dumpable_context=_load,
    )
