"""EmbeddingBag that applies pending updates of rows when they are looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.nn.lookup import LookupTable, has_sparse_gradient

__all__ = ["EmbeddingBag"]


class EmbeddingBag(LookupTable, torch.nn.EmbeddingBag):  # type: ignore[misc]  # as in Embedding
    r"""Computes sums, means or maxima of bags of rows; applies pending updates of rows when they are read.

    .. math:: y_b = \sum_{i \in b} w_i\, W_{x_i}, \qquad \frac{1}{|b|} \sum_{i \in b} W_{x_i} \quad\text{or}\quad
              \max_{i \in b} W_{x_i}

    It differs from ``torch.nn.EmbeddingBag`` as :class:`maskgrad.nn.Embedding` does from ``torch.nn.Embedding``.

    Args:
        num_embeddings: size of the dictionary, the number of rows.
        embedding_dim: size of each vector.
        max_norm: rows with a larger norm are renormalized, in place, when they are looked up.
        norm_type: the p of the p-norm for ``max_norm``.
        scale_grad_by_freq: divide a row's gradient by the number of its lookups; needs a dense gradient.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; the last needs a dense gradient.
        sparse: whether the gradient of ``weight`` is a COO tensor; None: yes, if possible.
        include_last_offset: ``offsets`` ends with the number of indices.
        padding_idx: index of a row that belongs to no bag, and is initialized with zeros; may be negative.
        device: device of the table.
        dtype: floating-point.

    Shapes: indices (B, N), or (N,) with ``offsets`` (B,), give (B, embedding_dim); ``per_sample_weights`` have the
    shape of the indices.

    Gradient:
        COO rows, one per index; and for ``per_sample_weights``. In float32 for
        half-precision tables on a CPU, as in :class:`Embedding`.

    Raises:
        ValueError: ``sparse=True`` with ``scale_grad_by_freq=True`` or ``mode="max"``.
        RuntimeError: as in :class:`Embedding`.

    Dense equivalent: ``torch.nn.EmbeddingBag`` with the optimizer of ``torch.optim``.

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
    ) -> None:
        reason = "scale_grad_by_freq=True" if scale_grad_by_freq else 'mode="max"' if mode == "max" else None
        sparse = has_sparse_gradient(sparse, reason)
        torch.nn.EmbeddingBag.__init__(
            self, num_embeddings, embedding_dim, max_norm, norm_type, scale_grad_by_freq, mode,
            sparse, _weight, include_last_offset, padding_idx, device, dtype,
        )  # fmt: skip
        self._register()

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look up and reduce; the arguments are those of ``torch.nn.EmbeddingBag``."""
        input = self._ready(input)
        found = super().forward(input, offsets, per_sample_weights)
        self._looked_up()
        return found
