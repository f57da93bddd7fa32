r"""Softmax and logsumexp of the specified entries, in ordinary PyTorch.

.. math:: y_i = \frac{e^{x_i}}{\sum_j m_j e^{x_j}}, \qquad \ell = \log \sum_j m_j e^{x_j}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_j m_j y_j \bar y_j\Bigr), \qquad \bar x_i = e^{x_i - \ell}\, \bar\ell

An unspecified entry is replaced by -inf, the logit of probability 0, which no kernel of PyTorch can tell from an absent
one: exp(-inf) is exactly 0, in the sum and in every derivative. A slice without entries is replaced by zeros, where all
derivatives are finite. In the results, unspecified entries are 0 (the logarithm: -inf), and the logsumexp of
nothing is -inf; all gradients are selected by the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.reductions import HALVES
from maskgrad.kernels.smallest import any_of


def absent(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The values with -inf for what is unspecified, and zeros in slices of which nothing is."""
    present = any_of(mask, dim, keepdim=True)
    return torch.where(mask, values, torch.where(present, -torch.inf, 0.0).to(values.dtype))


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    """Softmax along ``dim``, or its logarithm."""
    safe = absent(values, mask, (dim,))
    if logarithm:
        return torch.where(mask, torch.log_softmax(safe, dim), -torch.inf)
    return torch.where(mask, torch.softmax(safe, dim), 0)


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    """The gradient of the values from that of their (logarithmic) softmax ``output``."""
    wide = torch.float32 if output.dtype in HALVES else output.dtype
    g, y = torch.where(mask, grad.to(wide), 0), torch.where(mask, output.to(wide), 0)
    soft = (
        y * (g - (g * y).sum(dim, keepdim=True)) if not logarithm else g - y.exp() * g.sum(dim, keepdim=True)
    )
    return torch.where(mask, soft, 0).to(output.dtype)


def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of exponentials, and whether there was an entry."""
    safe = absent(values, mask, dim)
    present = any_of(mask, dim, keepdim)
    wide = safe.float() if values.dtype in HALVES else safe
    # torch.logsumexp takes an empty dim for all of them.
    result = torch.logsumexp(wide, dim, keepdim=keepdim) if dim else wide
    return torch.where(present, result, -torch.inf).to(values.dtype), present


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    """``exp(values - result) * grad`` where ``mask`` holds, else 0; ``result`` and ``grad`` broadcast to the values."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    powers = torch.where(mask, values.to(wide) - result.to(wide), 0).exp()
    return torch.where(mask, powers * grad.to(wide), 0).to(values.dtype)
