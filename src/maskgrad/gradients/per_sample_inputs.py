"""Inputs and targets of a batch of samples, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from maskgrad.gradients.per_sample_mode import NotBatchedError
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Batch", "padded"]

_SHARED = "; put data shared by all samples into the model or loss_fn, as with functools.partial"
_OFFSETS = (
    ". Pass rows and offsets as one argument: mg.from_offsets(rows, offsets), or, where the last offset is missing as "
    "in EmbeddingBag, mg.from_offsets(rows, torch.nn.functional.pad(offsets, (0, 1), value=len(rows)))"
)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets in which every tensor has the samples in its first dimension."""

    leaves: list[Any]
    spec: pytree.TreeSpec
    size: int

    @classmethod
    def of(cls, inputs: Any, targets: Any) -> Batch:
        """Check the user's arguments; tensors are detached."""
        if isinstance(inputs, list):
            raise TypeError(
                "inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, found a list"
            )
        leaves, spec = pytree.tree_flatten((inputs, targets), is_leaf=_is_tensor)
        size, given = None, spec.child(0).num_leaves
        for i, value in enumerate(leaves):
            if i == given and size is None:
                break
            if _is_tensor(value):
                size = _number_of_samples(value, "inputs" if i < given else "targets", size)
                leaves[i] = value.detach()
        if size is None:
            raise TypeError(f"inputs must contain at least one tensor, found {type(inputs).__name__}")
        return cls(leaves, spec, size)

    def part(self, start: int, stop: int) -> Batch:
        """Return the samples ``start`` to ``stop``."""
        if (start, stop) == (0, self.size):
            return self

        def samples(x: Any) -> Any:
            if isinstance(x, Tensor) and x.layout is not torch.strided:
                return x.index_select(0, torch.arange(start, stop, device=x.device))
            return x[start:stop] if _is_tensor(x) else x

        return Batch(list(map(samples, self.leaves)), self.spec, stop - start)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, MaskedTensor, PackedSequence))


def _number_of_samples(value: Any, name: str, expected: int | None) -> int:
    if isinstance(value, PackedSequence):
        raise TypeError(
            "inputs and targets must be tensors with a row for each sample, found a PackedSequence, with a row for "
            "each step; use mg.from_lengths(*torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)), and "
            "batch_first=True for recurrent layers"
        )
    if isinstance(value, Tensor) and value.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(
            f"{name} must be strided, COO or masked tensors, found one of layout {value.layout}; write "
            f"mg.from_{'nested' if value.is_nested else 'sparse'}(x)"
        )
    if value.dim() == 0:
        raise ValueError(
            f"{name} must be tensors whose first dimension is that of samples, found a 0-dim tensor{_SHARED}"
        )
    size: int = value.shape[0]
    if expected not in (None, size):
        integers = value.dim() == 1 and not (value.is_floating_point() or value.is_complex())
        raise ValueError(
            f"{name} must have {expected} samples, as the first tensor of inputs, found a tensor of shape "
            f"{tuple(value.shape)}{_OFFSETS if integers else _SHARED}"
        )
    return size


def padded(x: Any) -> Any:
    """Return a tensor whose samples have the same number of entries, for ``vmap``; what is no tensor as it is."""
    if not _is_tensor(x):
        return x
    if x.layout not in (torch.strided, torch.jagged):
        raise NotBatchedError(
            f"the samples of a tensor of layout {x.layout} have different numbers of entries; pass x.to_dense() if "
            "memory allows"
        )
    return x.to_dense() if x.layout is torch.jagged else x
