"""Registries of torch: pytrees, safe globals of files, collation of batches.

For transformations and graphs a MaskedTensor is a pytree of plain tensors, its values and those of its pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data._utils import collate

from maskgrad.masked_tensor.tensor import MaskedTensor, facts_of, rebuild, rebuild_stored
from maskgrad.mode import mode
from maskgrad.patterns import PatternFacts
from maskgrad.patterns.conversion import STORAGES, pattern_of_facts

__all__ = ["holds_masked", "is_masked", "let_load", "register"]


def is_masked(x: object) -> bool:
    """Return whether ``x`` is a MaskedTensor; for ``is_leaf`` of pytrees."""
    return isinstance(x, MaskedTensor)


def holds_masked(tree: Any) -> bool:
    """Return whether a leaf of a tree is a MaskedTensor."""
    return any(isinstance(leaf, MaskedTensor) for leaf in pytree.tree_leaves(tree, is_masked))


def _flatten(x: MaskedTensor) -> tuple[list[Any], PatternFacts]:
    return [x._values, *x._pattern.tensors()], x._pattern.facts()


def _flatten_with_keys(x: MaskedTensor) -> tuple[list[tuple[pytree.KeyEntry, Any]], PatternFacts]:
    leaves, facts = _flatten(x)
    names = ("values", *STORAGES[facts.layout].tensors)
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], facts


def _unflatten(leaves: Any, facts: PatternFacts) -> MaskedTensor:
    values, *tensors = leaves
    if mode() == "export" and facts.layout == "strided" and isinstance(tensors[0], Tensor):
        tensors = [tensors[0].contiguous()]  # that an example's mask repeats must not be true of all others
    # Leaves of any other type are placeholders during a transformation.
    if facts.layout == "strided" and type(values) is Tensor and type(tensors[0]) is Tensor:
        mask = tensors[0]
        if mask.dtype != torch.bool or mask.shape != values.shape:
            raise ValueError(
                "a function was applied to the parts of a MaskedTensor, a pytree, and the results do not match: "
                f"values of shape {tuple(values.shape)}, and a mask of shape {tuple(mask.shape)} and {mask.dtype}. "
                "Apply the function to the MaskedTensor itself, "
                "tree_map(f, tree, is_leaf=lambda x: isinstance(x, mg.MaskedTensor)), or to x.filled(value)"
            )
    return MaskedTensor(values, pattern_of_facts(facts, tuple(tensors)))


def register() -> None:
    """Register the class where torch has a registry: pytrees, safe files, the batches of a DataLoader."""
    pytree.register_pytree_node(
        MaskedTensor,
        _flatten,
        _unflatten,
        serialized_type_name="maskgrad.MaskedTensor",
        flatten_with_keys_fn=_flatten_with_keys,
        to_dumpable_context=list,
        from_dumpable_context=facts_of,
    )
    let_load([rebuild, rebuild_stored])
    collate.default_collate_fn_map[MaskedTensor] = _stack


def let_load(made_by: Sequence[Callable[..., Any]]) -> None:
    """Allow files to contain results of these classes or functions, for ``torch.load(weights_only=True)``."""
    torch.serialization.add_safe_globals([*made_by])


def _stack(batch: list[MaskedTensor], *, collate_fn_map: Any = None) -> MaskedTensor:
    return torch.stack(batch, 0)  # type: ignore[arg-type, return-value]
