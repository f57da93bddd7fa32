"""A gradient in which every place occurs once, in at least float32: what norms and checks have to look at.

A sparse gradient lists contributions, and several may belong to one entry. Halves are widened before they are added:
40000 + 40000 is infinite in float16 and 80000 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskgrad.gradients.padded_rows import PaddedRows, sizes_may_vary
from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.tensor import of_entries, stored_of

__all__ = ["MergedGradient", "is_half", "merged_gradient", "widened_dtype"]

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class MergedGradient:
    """The specified entries of a gradient, each once, as they are stored."""

    values: Tensor
    """In at least float32; 0 where a Boolean mask says that nothing is specified. Perhaps the gradient itself."""
    counted: Tensor | None
    """Boolean, of the shape of ``values``: specified, and trained according to ``mg.train_only``. None: all."""
    rebuilt: Callable[[Tensor], Tensor | MaskedTensor | PaddedRows]
    """The same kind of gradient around other values."""

    def to(self, dtype: torch.dtype) -> MergedGradient:
        """The same with values of another dtype."""
        return replace(self, values=self.values.to(dtype))

    def counted_values(self) -> Tensor:
        """``values``, with 0 for what does not count."""
        return self.values if self.counted is None else torch.where(self.counted, self.values, 0)

    def only_counted_values(self) -> Tensor:
        """``values`` (n,) without what does not count; a GPU is waited for."""
        return self.values if self.counted is None else self.values[self.counted]


def merged_gradient(
    gradient: Tensor | MaskedTensor | PaddedRows,
    trained: Tensor | None = None,
    factor: Tensor | None = None,
) -> MergedGradient:
    """Merge ``gradient``, of any layout, multiplied by ``factor`` before anything is added up.

    Args:
        gradient: MaskedTensor, PaddedRows, or strided, COO, CSR, CSC, BSR or BSC tensor.
        trained: the mask of ``mg.train_only``, in the shape of the gradient; None: everything is trained.
        factor: 0-dim float32 tensor on the gradient's device.

    Raises:
        TypeError: unknown layout.
        IndexError: an index lies outside the shape.
        ValueError: compressed indices contradict each other.
    """
    gradient = gradient.detach()
    if isinstance(gradient, PaddedRows):
        return _of_padded(gradient, trained, factor)
    if isinstance(gradient, MaskedTensor):
        return _of_masked(gradient, trained, factor, lambda m: m)
    if gradient.layout is torch.strided:
        return MergedGradient(_wide(gradient, factor), trained, lambda values: values)
    if gradient.layout is torch.sparse_coo:
        gradient = torch.sparse_coo_tensor(  # from_sparse merges, and in the dtype it is given
            gradient._indices(), _wide(gradient._values(), factor), gradient.shape, check_invariants=False
        )
        factor = None
    return _of_masked(from_sparse(gradient), trained, factor, lambda m: m.to_sparse_tensor())


def is_half(gradient: Tensor | MaskedTensor | PaddedRows) -> bool:
    """Whether it is float16 or bfloat16."""
    return gradient.dtype in _HALVES


def widened_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 for halves, complex64 for complex halves; every other dtype as it is."""
    return torch.promote_types(dtype, torch.float32)


def _wide(values: Tensor, factor: Tensor | None) -> Tensor:
    wide = values.to(widened_dtype(values.dtype))
    return wide if factor is None else wide * factor


def _of_masked(
    gradient: MaskedTensor,
    trained: Tensor | None,
    factor: Tensor | None,
    finished: Callable[[MaskedTensor], Tensor | MaskedTensor],
) -> MergedGradient:
    stored = stored_of(gradient)
    if stored is None:
        mask = gradient.mask
        counted = mask if trained is None else mask & trained
        return MergedGradient(
            _wide(gradient.filled(0), factor), counted, lambda values: finished(of_entries(values, mask))
        )
    pattern = stored.pattern
    return MergedGradient(
        _wide(stored.values, factor),
        None if trained is None else pattern.gathered(trained[tuple(pattern.coordinates())]),
        lambda values: finished(MaskedTensor(values, pattern)),
    )


def _of_padded(gradient: PaddedRows, trained: Tensor | None, factor: Tensor | None) -> MergedGradient:
    if sizes_may_vary(gradient.device):
        gradient.checked("a gradient")
    merged = gradient.with_values(_wide(gradient.values, factor)).merged()
    counted = merged.used.view(-1, *(1 for _ in merged.shape[1:])).expand_as(merged.values)
    if trained is not None and merged.capacity:
        counted = counted & trained.index_select(0, merged.rows.clamp(max=merged.shape[0] - 1))
    return MergedGradient(merged.values, counted, merged.with_values)
