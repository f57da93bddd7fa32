"""EmbeddingBag whose rows are up to date when they are looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.nn.lookup import LookupTable, dense_gradient_needed, rows_and_columns
from maskgrad.nn.padded_lookup import (
    checked_capacity,
    keeps_slots,
    padded_bags,
    renormalized,
)

__all__ = ["EmbeddingBag"]


class EmbeddingBag(LookupTable, torch.nn.EmbeddingBag):
    r"""Sums, means or maxima of bags of rows of a table; rows are up to date when they are read.

    .. math:: y_b = \sum_{i \in b} w_i\, W_{x_i}, \qquad \frac{1}{|b|} \sum_{i \in b} W_{x_i} \quad\text{or}\quad
              \max_{i \in b} W_{x_i}

    To ``torch.nn.EmbeddingBag`` as :class:`maskgrad.nn.Embedding` is to ``torch.nn.Embedding``.

    Args:
        num_embeddings: number of rows.
        embedding_dim: size of a row.
        max_norm: rows are scaled down to this norm, in place, when they are looked up.
        norm_type: which norm.
        scale_grad_by_freq: divide a row's gradient by how often it was looked up; needs a dense gradient.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; the last needs a dense gradient.
        sparse: whether the gradient of ``weight`` is a COO tensor; None: yes, where that is possible.
        include_last_offset: ``offsets`` ends with the number of indices.
        padding_idx: a row that belongs to no bag, and starts with zeros; may be negative.
        device: where the table is made.
        dtype: floating-point.
        capacity: keep the gradient in so many slots, as in :class:`maskgrad.nn.Embedding`. The rows of all bags are
            then in memory at once.

    Shapes: indices (B, N), or (N,) with ``offsets`` (B,), give (B, embedding_dim); ``per_sample_weights`` have the
    shape of the indices.

    Gradient:
        COO rows, one per index, or slots with a ``capacity``; and for ``per_sample_weights``. Of half-precision tables
        on a CPU in float32, as in :class:`Embedding`.

    Raises:
        TypeError: ``capacity`` is no integer.
        ValueError: ``sparse=True`` or a ``capacity`` with ``scale_grad_by_freq=True`` or ``mode="max"``, or a
            ``capacity`` with ``sparse=False`` or below 1; in a look-up or a backward pass, more rows than slots.

    Dense equivalent: ``torch.nn.EmbeddingBag`` under the optimizer of ``torch.optim``.

    Example:
        >>> bag = mg.nn.EmbeddingBag.from_pretrained(torch.tensor([[1.], [2.], [4.]]), mode="sum")
        >>> bag(torch.tensor([0, 1, 2]), torch.tensor([0, 1])).view(-1)
        tensor([1., 6.])

    Source: ``torch.nn.EmbeddingBag``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool | None = None,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> None:
        reason = "scale_grad_by_freq=True" if scale_grad_by_freq else 'mode="max"' if mode == "max" else None
        dense = dense_gradient_needed(sparse, reason)
        torch.nn.EmbeddingBag.__init__(
            self, num_embeddings, embedding_dim, max_norm, norm_type, scale_grad_by_freq, mode,
            not dense and capacity is None, _weight, include_last_offset, padding_idx, device, dtype,
        )  # fmt: skip
        self.capacity = checked_capacity(capacity, dense, reason or "sparse=False")
        self._register()

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look up and reduce; the arguments are those of ``torch.nn.EmbeddingBag``."""
        input = self._ready(input)
        if keeps_slots(self, input):
            renormalized(self, input)
            found = padded_bags(self, input, offsets, per_sample_weights)
        else:
            found = super().forward(input, offsets, per_sample_weights)
        self._looked_up()
        return found

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        capacity: int | None = None,
    ) -> EmbeddingBag:
        """A table with given rows, which it shares; frozen unless told otherwise.

        Args are those of the class.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        rows, columns = rows_and_columns(embeddings)
        bag = cls(
            rows, columns, max_norm=max_norm, norm_type=norm_type, scale_grad_by_freq=scale_grad_by_freq,
            mode=mode, sparse=sparse, _weight=embeddings, include_last_offset=include_last_offset,
            padding_idx=padding_idx, capacity=capacity,
        )  # fmt: skip
        bag.weight.requires_grad = not freeze
        return bag
