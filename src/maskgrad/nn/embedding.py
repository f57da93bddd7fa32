"""Embedding that applies pending updates of rows when they are looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.nn.lookup import LookupTable, has_sparse_gradient

__all__ = ["Embedding"]


class Embedding(LookupTable, torch.nn.Embedding):  # type: ignore[misc]  # options of from_pretrained are named
    r"""A lookup table with a vector for each index; applies pending updates of rows when they are read.

    .. math:: y_{i} = W_{x_i}

    It is ``torch.nn.Embedding``, with two differences. Its gradient is sparse by default, so that the cost of a step of
    ``mg.optim`` is proportional to the number of lookups. And if its optimizer has ``unspecified="zero"``, which defers
    updates of rows without a gradient, pending updates are applied to rows before they are looked up, and to all
    rows before the table is saved, loaded, copied, pickled or converted. Call ``flush()`` before you read or write
    ``weight`` directly.

    Args:
        num_embeddings: size of the dictionary, the number of rows.
        embedding_dim: size of each vector.
        padding_idx: index of a row that gets no gradient, and is initialized with zeros; may be negative.
        max_norm: rows with a larger norm are renormalized, in place, when they are looked up.
        norm_type: the p of the p-norm for ``max_norm``.
        scale_grad_by_freq: divide a row's gradient by the number of its lookups; needs a dense gradient.
        sparse: whether the gradient of ``weight`` is a COO tensor; None: yes, unless ``scale_grad_by_freq``.
        device: device of the table.
        dtype: floating-point or complex.

    Shapes: indices, int32 or int64, of any shape ``(*)`` give ``(*, embedding_dim)``.

    Gradient:
        COO rows, one per lookup; duplicates are merged by the optimizer. Sparse gradients of half-precision tables on a
        CPU are accumulated in float32 (``weight.grad_dtype``), because PyTorch cannot add two of them otherwise.

    Raises:
        ValueError: ``sparse=True`` with ``scale_grad_by_freq=True``.
        RuntimeError: in a lookup, the gradient is sparse and the table on an XLA device, which has no sparse tensors.
        IndexError: in a lookup, an index is outside the table.

    Dense equivalent: ``torch.nn.Embedding`` with the optimizer of ``torch.optim``.

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
    ) -> None:
        sparse = has_sparse_gradient(sparse, "scale_grad_by_freq=True" if scale_grad_by_freq else None)
        torch.nn.Embedding.__init__(
            self, num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, _freeze, device, dtype,
        )  # fmt: skip
        self._register()

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows with these indices."""
        if isinstance(input, MaskedTensor) and input.layout is torch.jagged:
            return MaskedTensor(self.forward(input._values), input._pattern)
        input = self._ready(input)
        found = super().forward(input)
        self._looked_up()
        return found
