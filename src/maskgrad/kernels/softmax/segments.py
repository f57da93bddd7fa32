r"""Logarithm of the sum of exponentials of each segment of a list of entries, in ordinary PyTorch.

.. math:: \ell_k = \log \sum_{i \in k} e^{x_i} = M_k + \log \sum_{i \in k} e^{x_i - M_k}, \qquad
          \frac{\partial \ell_k}{\partial x_i} = e^{x_i - \ell_k}

with :math:`M_k` the largest entry. That of a segment without entries is -inf. Segments and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.segments import segment_expand, segment_extremum, segment_sum

__all__ = ["segment_logsumexp", "segment_logsumexp_backward"]


@kernel("(Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS, min_numel=8_192)
def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """``torch.logsumexp`` of each segment, (n, *dense) -> (g, *dense), float32 for halves; -inf where it is empty."""
    wide = values.float() if values.dtype in HALVES else values
    real = wide.real if wide.is_complex() else wide
    best = segment_extremum.reference(real.detach(), pointers, order, True)
    shift = torch.where(best.isfinite(), best, 0)
    powers = (wide - segment_expand.reference(shift, pointers, order, len(values))).exp()
    return segment_sum.reference(powers, pointers, order).log() + shift


@kernel(
    "(Tensor grad, Tensor values, Tensor result, Tensor pointers, Tensor? order) -> Tensor",
    FLOATS,
    min_numel=8_192,
    leading=1,
)
def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """The gradient of the entries from that of their ``result``, (n, *dense)."""
    number, wide = len(values), values.float() if values.dtype in HALVES else values
    powers = (wide - segment_expand.reference(result, pointers, order, number)).exp().conj()
    return (powers * segment_expand.reference(grad, pointers, order, number)).to(values.dtype)


def _save_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _logsumexp_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return segment_logsumexp_backward(grad, *ctx.saved_tensors), None, None


segment_logsumexp.derive(_save_logsumexp, _logsumexp_backward)
segment_logsumexp_backward.derive_through_reference()
