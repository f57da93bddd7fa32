r"""Logarithm of the sum of exponentials of each segment of a list of entries, in ordinary PyTorch.

.. math:: \ell_k = \log \sum_{i \in k} e^{x_i} = M_k + \log \sum_{i \in k} e^{x_i - M_k}, \qquad
          \frac{\partial \ell_k}{\partial x_i} = e^{x_i - \ell_k}

with :math:`M_k` the largest entry. That of a segment without entries is -inf. Segments and shapes are those of
:mod:`maskgrad.kernels.reference.segments`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.reductions import HALVES
from maskgrad.kernels.reference.segments import segment_extremum, segment_spread, segment_sum

__all__ = ["segment_logsumexp", "segment_logsumexp_backward"]


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """(n, *dense) -> (g, *dense), float32 for halves."""
    wide = values.float() if values.dtype in HALVES else values
    real = wide.real if wide.is_complex() else wide
    best = segment_extremum(real.detach(), pointers, order, True)
    shift = torch.where(best.isfinite(), best, 0)
    powers = (wide - segment_spread(shift, pointers, order, len(values))).exp()
    return segment_sum(powers, pointers, order).log() + shift


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """The gradient of the entries from that of their ``result``, (n, *dense)."""
    number, wide = len(values), values.float() if values.dtype in HALVES else values
    powers = (wide - segment_spread(result, pointers, order, number)).exp().conj()
    return (powers * segment_spread(grad, pointers, order, number)).to(values.dtype)
