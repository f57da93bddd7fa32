"""Embedding whose rows are up to date when they are looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.nn.lookup import LookupTable, dense_gradient_needed, rows_and_columns
from maskgrad.nn.padded_lookup import (
    checked_capacity,
    keeps_slots,
    padded_lookup,
    renormalized,
)
from maskgrad.nn.sparse_lookup import sparse_lookup

__all__ = ["Embedding"]


class Embedding(LookupTable, torch.nn.Embedding):
    r"""A table of vectors, one looked up for each index; rows are up to date when they are read.

    .. math:: y_{i} = W_{x_i}

    It is ``torch.nn.Embedding``, with two differences. Its gradient is sparse unless told otherwise, so that a step of
    ``mg.optim`` costs what was looked up. And if its optimizer has ``unspecified="zero"``, which moves rows without
    a gradient when they are next needed, it is the table that says when: before a look-up, for its rows; before it
    is saved, loaded, copied, pickled or converted, for all. Whoever reads or writes ``weight`` directly calls
    ``flush()`` first.

    Args:
        num_embeddings: number of rows.
        embedding_dim: size of a row.
        padding_idx: a row that gets no gradient, and starts with zeros; may be negative.
        max_norm: rows are scaled down to this norm, in place, when they are looked up.
        norm_type: which norm.
        scale_grad_by_freq: divide a row's gradient by how often it was looked up; needs a dense gradient.
        sparse: whether the gradient of ``weight`` is a COO tensor; None: yes, unless ``scale_grad_by_freq``.
        device: where the table is made.
        dtype: floating-point or complex.
        capacity: keep the gradient in so many slots instead, a :class:`maskgrad.PaddedRows` of constant size that is
            attached to ``weight`` (:func:`maskgrad.attach_gradient`): for graphs that must not be compiled again. As
            many as there are look-ups between two steps always suffice, and so do ``num_embeddings``. On a device
            without sparse tensors (XLA) None means one slot per look-up.

    Shapes: indices, int32 or int64, of any shape ``(*)`` give ``(*, embedding_dim)``.

    Gradient:
        COO rows, one per look-up; duplicates are merged by the optimizer. With a ``capacity`` they are attached by
        ``backward()`` (:func:`maskgrad.attach_gradient` says what that means for ``.grad``); where the weight is no
        leaf, or under ``torch.func``, it is dense. Sparse gradients of half-precision tables on a CPU are gathered in
        float32 (``weight.grad_dtype``), because PyTorch cannot add up two of them otherwise.

    Raises:
        TypeError: ``capacity`` is no integer.
        ValueError: ``sparse=True`` or a ``capacity`` with ``scale_grad_by_freq=True``, or a ``capacity`` with
            ``sparse=False`` or below 1; in a look-up or a backward pass, more rows than there is a slot for.
        IndexError: in a look-up, an index outside the table.

    Dense equivalent: ``torch.nn.Embedding`` under the optimizer of ``torch.optim``.

    Example:
        >>> table = mg.nn.Embedding(3, 1)
        >>> with torch.no_grad():
        ...     _ = table.weight.fill_(1.0)
        >>> optimizer = mg.optim.SGD(table.parameters(), lr=1.0, weight_decay=0.5, unspecified="zero")
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     (table(torch.tensor([0])) * 0).sum().backward()
        ...     optimizer.step()
        >>> table(torch.tensor([2])).item()  # decayed twice, though it never had a gradient
        0.25

    Source: ``torch.nn.Embedding``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool | None = None,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> None:
        reason = "scale_grad_by_freq=True" if scale_grad_by_freq else None
        dense = dense_gradient_needed(sparse, reason)
        torch.nn.Embedding.__init__(
            self, num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            not dense and capacity is None, _weight, _freeze, device, dtype,
        )  # fmt: skip
        self.capacity = checked_capacity(capacity, dense, reason or "sparse=False")
        self._register()

    def forward(self, input: Tensor) -> Tensor:
        """Look up; ``input`` holds indices."""
        input = self._ready(input)
        if keeps_slots(self, input):
            renormalized(self, input)
            found = padded_lookup(self, input, self.padding_idx)
            self._looked_up()
            return found
        if self.sparse and self.max_norm is None:
            fused = sparse_lookup(self.weight, input, self.padding_idx)
            if fused is not None:
                return fused
        found = super().forward(input)
        self._looked_up()
        return found

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool | None = None,
        capacity: int | None = None,
    ) -> Embedding:
        """A table with given rows, which it shares; frozen unless told otherwise.

        Args are those of the class.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        rows, columns = rows_and_columns(embeddings)
        return cls(
            rows, columns, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, _weight=embeddings, _freeze=freeze,
            capacity=capacity,
        )  # fmt: skip
