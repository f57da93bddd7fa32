"""A batch of samples: arguments and targets in any container, the way into ``vmap`` over them, and what comes back."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch import vmap
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Batch", "NonzeroCotangents", "any_specified", "for_each_sample"]

_vmap: Any = vmap
OfOneSample = Callable[[dict[str, Tensor], Tensor, list[Any]], tuple[Tensor, ...]]

_SHARED = "; what all samples share belongs into the model or loss_fn, as with functools.partial"


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
        """Check and flatten; ``in_graph``: gradients may flow to what is given."""
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
                    f"{name} must be tensors whose first dimension counts the samples, found a 0-dim tensor{_SHARED}"
                )
            if size is None:
                if name == "targets":
                    break
                size = value.shape[0]
            elif value.shape[0] != size:
                raise ValueError(
                    f"{name} must hold {size} samples, as the first tensor of inputs does, found a tensor of shape "
                    f"{tuple(value.shape)}{_SHARED}"
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
        leaves = tuple(
            leaf.index_select(0, torch.arange(start, stop, device=leaf.device))
            if isinstance(leaf, Tensor) and leaf.layout is not torch.strided
            else leaf[start:stop]
            for leaf in self.leaves
        )
        return replace(self, leaves=leaves, size=stop - start)

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


def for_each_sample(
    function: OfOneSample,
    copies: Mapping[str, Tensor],
    numbers: Tensor,
    leaves: Sequence[Tensor | MaskedTensor],
    randomness: str,
) -> tuple[Tensor, ...]:
    """``torch.vmap(function, randomness=randomness)(copies, numbers, leaves)``, entered by a shorter way.

    ``torch.vmap`` flattens its arguments and looks up how each is mapped, which takes a tenth of the time where layers
    are small (32 samples of 20 words: 1.0 ms with it, 0.9 ms without). Here all of them are mapped over dimension 0.
    """
    _vmap.lazy_load_decompositions()
    size = len(numbers)
    with _vmap.vmap_increment_nesting(size, randomness) as level:

        def one(x: Tensor) -> Tensor:
            found: Tensor = functorch._add_batch_dim(x, 0, level)
            return found

        def part(leaf: Tensor | MaskedTensor) -> Any:
            return one(leaf) if isinstance(leaf, Tensor) else pytree.tree_map(one, leaf)

        found = function(
            {name: one(copy) for name, copy in copies.items()}, one(numbers), [part(leaf) for leaf in leaves]
        )
        return tuple([functorch._remove_batch_dim(x, level, size, 0) for x in found])


class NonzeroCotangents:
    """Notes during the backward pass for which samples the gradient by the outputs is not zero (NaN is not).

    The loss of nothing sends zero back, and zero times a NaN activation would be NaN.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.found = torch.zeros(batch, dtype=torch.bool, device=device)

    def watch(self, outputs: Iterable[Any], dim: int | None = 0) -> None:
        """Outputs of all samples along ``dim``, of one sample under ``vmap``, or (None) of the only one."""
        for x in outputs:
            if isinstance(x, Tensor):
                batched = functorch.is_batchedtensor(x)
                y, along = (functorch.get_unwrapped(x), functorch.maybe_get_bdim(x)) if batched else (x, dim)
                if y.requires_grad:
                    y.register_hook(functools.partial(self._note, along))
            elif not isinstance(x, (int, float, str, type(None))):
                self.found = torch.ones_like(self.found)  # an object may hold tensors: anything may come back

    def _note(self, dim: int | None, cotangent: Tensor) -> None:
        nonzero = cotangent.detach() != 0
        of_each = nonzero.any() if dim is None else nonzero.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
        self.found = self.found | of_each.to(self.found.device)


def any_specified(noted: Sequence[Tensor]) -> Tensor:
    """Whether one of the noted masks holds anything, also those of transformations that the loss made."""
    level = functorch.maybe_current_level() or 0

    def unwrapped(mask: Tensor) -> Tensor:  # without the wrappers of transformations that have ended
        while functorch.is_functorch_wrapped_tensor(mask) and functorch.maybe_get_level(mask) > level:
            mask = functorch.get_unwrapped(mask)
        return mask

    return functools.reduce(operator.or_, [unwrapped(mask).any().to(noted[0].device) for mask in noted])
