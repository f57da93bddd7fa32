"""The arguments of a model and the targets, one batch of samples in any container, and parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Batch"]


@dataclass(frozen=True)
class Batch:
    """Inputs and targets, flattened: the leaves that have a dimension of samples, the first, and everything else."""

    leaves: tuple[Tensor | MaskedTensor, ...]
    others: tuple[Any, ...]
    """What stands in the places of ``spec`` that belong to no leaf; a place holder where there is one."""
    spec: pytree.TreeSpec
    size: int

    @classmethod
    def of(cls, inputs: Any, targets: Any, in_graph: bool = False) -> Batch:
        """Check and flatten; ``in_graph``: gradients may flow to what is given.

        Raises:
            TypeError: no tensor among ``inputs``.
            ValueError: tensors without a first dimension, or of different sizes there.
        """
        if isinstance(inputs, list):
            raise TypeError(
                "inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, found a list"
            )
        found, spec = pytree.tree_flatten((inputs, targets), is_leaf=_is_masked)
        number = len(pytree.tree_leaves(inputs, is_leaf=_is_masked))
        leaves, others = [], []
        size: int | None = None
        for place, value in enumerate(found):
            if not isinstance(value, (Tensor, MaskedTensor)):
                others.append(value)
                continue
            name = "inputs" if place < number else "targets"
            if value.dim() == 0:
                raise ValueError(
                    f"{name} must be tensors whose first dimension counts the samples, found a 0-dim tensor; what all "
                    "samples share belongs into the model or loss_fn, as with functools.partial"
                )
            if size is None:
                if name == "targets":
                    break
                size = value.shape[0]
            elif value.shape[0] != size:
                raise ValueError(
                    f"{name} must hold {size} samples, as the first tensor of inputs does, found a tensor of shape "
                    f"{tuple(value.shape)}; what all samples share belongs into the model or loss_fn, as with "
                    "functools.partial"
                )
            leaves.append(value if in_graph else value.detach())
            others.append(_LEAF)
        if size is None:
            raise TypeError(f"inputs must hold at least one tensor, found {type(inputs).__name__}")
        return cls(tuple(leaves), tuple(others), spec, size)

    def part(self, start: int, stop: int) -> Batch:
        """Samples ``start`` to ``stop``."""
        if (start, stop) == (0, self.size):
            return self
        leaves = tuple(_slice(leaf, start, stop) for leaf in self.leaves)
        return Batch(leaves, self.others, self.spec, stop - start)

    def arguments(self, leaves: Sequence[Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Positional and keyword arguments of the model, and the targets, with ``leaves`` for those of the batch."""
        given = iter(self.leaves if leaves is None else leaves)
        values = [next(given) if other is _LEAF else other for other in self.others]
        inputs, targets = pytree.tree_unflatten(values, self.spec)
        if isinstance(inputs, dict):
            return (), inputs, targets
        # A named tuple is one argument: it has a meaning of its own.
        args = inputs if type(inputs) is tuple else (inputs,)
        return args, {}, targets


_LEAF = object()


def _is_masked(value: Any) -> bool:
    return isinstance(value, MaskedTensor)


def _slice(leaf: Tensor | MaskedTensor, start: int, stop: int) -> Tensor | MaskedTensor:
    if isinstance(leaf, Tensor) and leaf.layout is not torch.strided:
        return leaf.index_select(0, torch.arange(start, stop, device=leaf.device))
    return leaf[start:stop]
