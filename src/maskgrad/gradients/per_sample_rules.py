"""The functions whose gradients per sample have a compact form: linear maps, and rows of tables.

A rule replaces the function, on one sample's operands under ``vmap``, with the mode as first argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maskgrad.gradients.per_sample_factors import Full, Outer, Rows, SampleGradients
from maskgrad.gradients.per_sample_mode import PerSampleMode, Rule
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.semantics.embeddings import renormalise

__all__ = ["RULES"]

Named = Iterator[tuple[str, SampleGradients]]


def _linear(mode: PerSampleMode, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""``F.linear``: :math:`G_b = \sum_p g_{bp} a_{bp}^T`, and :math:`\sum_p g_{bp}` for the bias."""
    (w, weight), (b, bias) = mode.parameter(weight), mode.parameter(bias)

    def factors(g: Tensor, x: Tensor) -> Named:
        a = x.reshape(len(x), -1, x.shape[-1]) if x.numel() else x.new_zeros(len(x), 0, x.shape[-1])
        g = g.reshape(len(x), a.shape[1], g.shape[-1])
        yield w, Outer(a.to(g.dtype), g)
        if bias is not None:
            yield b, Full(g.sum(1))

    found: Tensor = mode.layer(lambda x: F.linear(x, weight, bias), factors, input)
    return found


def _embedding(mode: PerSampleMode, input: Any, weight: Tensor, *options: Any, **named: Any) -> Any:
    """``F.embedding``, of indices that may be masked."""
    if not isinstance(input, MaskedTensor):
        return _looked_up(mode, input, None, weight, *options, **named)
    known = input.mask
    rows = _looked_up(mode, input.filled(0), known, weight, *options, **named)
    return masked(rows, known.unsqueeze(-1))


def _looked_up(
    mode: PerSampleMode,
    indices: Tensor,
    known: Tensor | None,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return the rows of a table at all ``indices``; the gradient has those that are ``known``."""
    name, table = mode.parameter(weight)
    height, width = table.shape
    padding = None if padding_idx is None else padding_idx % height

    def run(x: Tensor, known: Tensor | None = None) -> Tensor:
        if known is None or max_norm is None:
            return F.embedding(x, table, padding, max_norm, norm_type)
        renormalise(table, x, known, max_norm, norm_type)
        return F.embedding(x, table, padding)

    def factors(g: Tensor, x: Tensor, known: Tensor | None = None) -> Named:
        samples = torch.arange(len(x), device=x.device).repeat_interleave(x.shape[1:].numel())
        rows, values = x.reshape(-1).long(), g.reshape(-1, width)
        taken = None if known is None else known.reshape(-1)
        if padding is not None:
            taken = rows != padding if taken is None else taken & (rows != padding)
        if taken is not None:
            kept = taken.nonzero()[:, 0]
            samples, rows, values = samples[kept], rows[kept], values[kept]
        if scale_grad_by_freq:
            # Count of the row within the sample.
            _, at, counts = torch.unique(samples * height + rows, return_inverse=True, return_counts=True)
            values = values / counts[at][:, None].to(values.dtype)
        yield name, Rows(samples, rows, values, len(x), (height, width), sparse)

    found: Tensor = mode.layer(run, factors, indices, *(() if known is None else (known,)))
    return found


RULES: Mapping[Any, Rule] = {
    F.linear: _linear,
    F.embedding: _embedding,
}
