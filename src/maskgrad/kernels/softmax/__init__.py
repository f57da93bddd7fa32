r"""Softmax and logsumexp of the specified entries, in ordinary PyTorch.

.. math:: y_i = \frac{e^{x_i}}{\sum_j m_j e^{x_j}}, \qquad \ell = \log \sum_j m_j e^{x_j}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_j m_j y_j \bar y_j\Bigr), \qquad \bar x_i = e^{x_i - \ell}\, \bar\ell

An unspecified entry is replaced by -inf, the logit of probability 0, which no kernel of PyTorch can tell from an absent
one: exp(-inf) is exactly 0, in the sum and in every derivative. A slice without entries is replaced by zeros, where all
derivatives are finite. In the results, unspecified entries are 0 (the logarithm: -inf), and the logsumexp of
nothing is -inf; all gradients are selected by the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.reductions import kept, masked_sum
from maskgrad.kernels.smallest import any_of

__all__ = [
    "absent",
    "masked_logsumexp",
    "masked_logsumexp_backward",
    "masked_softmax",
    "masked_softmax_backward",
]


def absent(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The values with -inf for what is unspecified, and zeros in slices of which nothing is."""
    present = any_of(mask, dim, keepdim=True)
    return torch.where(mask, values, torch.where(present, -torch.inf, 0.0).to(values.dtype))


@kernel(
    "(Tensor values, Tensor mask, int dim, bool logarithm) -> Tensor",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    check=check_mask,
)
def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool = False) -> Tensor:
    """Softmax of the specified entries along ``dim``, or its logarithm; 0, or -inf, at unspecified entries."""
    safe = absent(values, mask, (dim,))
    if logarithm:
        return torch.where(mask, torch.log_softmax(safe, dim), -torch.inf)
    return torch.where(mask, torch.softmax(safe, dim), 0)


@kernel(
    "(Tensor grad, Tensor output, Tensor mask, int dim, bool logarithm) -> Tensor",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    leading=1,
)
def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    """The gradient of the values from that of their (logarithmic) softmax ``output``; exactly 0 where unspecified."""
    wide = torch.float32 if output.dtype in HALVES else output.dtype
    g, y = torch.where(mask, grad.to(wide), 0), torch.where(mask, output.to(wide), 0)
    soft = (
        y * (g - (g * y).sum(dim, keepdim=True)) if not logarithm else g - y.exp() * g.sum(dim, keepdim=True)
    )
    return torch.where(mask, soft, 0).to(output.dtype)


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor)",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    check=check_mask,
)
def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor]:
    """``log(sum(exp(x)))`` of the specified entries (-inf where there is none), and whether there was one."""
    safe = absent(values, mask, dim)
    present = any_of(mask, dim, keepdim)
    wide = safe.float() if values.dtype in HALVES else safe
    # torch.logsumexp takes an empty dim for all of them.
    result = torch.logsumexp(wide, dim, keepdim=keepdim) if dim else wide
    return torch.where(present, result, -torch.inf).to(values.dtype), present


@kernel(
    "(Tensor grad, Tensor values, Tensor result, Tensor mask) -> Tensor",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    leading=1,
)
def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    """``exp(values - result) * grad`` where ``mask`` holds, else 0; ``result`` and ``grad`` broadcast to the values."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    powers = torch.where(mask, values.to(wide) - result.to(wide), 0).exp()
    return torch.where(mask, powers * grad.to(wide), 0).to(values.dtype)


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.dim, ctx.logarithm = inputs
    ctx.save_for_backward(output, mask)


def _softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    output, mask = ctx.saved_tensors
    return masked_softmax_backward(grad, output, mask, ctx.dim, ctx.logarithm), None, None, None


def _save_softmax_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, soft, mask, ctx.dim, ctx.logarithm = inputs
    ctx.save_for_backward(grad, soft, mask)


def _softmax_backward_twice(ctx: Any, again: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    """With the sum S of a slice: of y (g - S(y g)), or of g - exp(y) S(g), in g and in y."""
    grad, soft, mask = ctx.saved_tensors

    def total(x: Tensor) -> Tensor:
        return masked_sum(x, mask, (ctx.dim,), True)[0]

    # Selected first: a product with what lies under the mask may be NaN, and so may its own derivative.
    g, y, a = (torch.where(mask, x, 0) for x in (grad, soft, again))
    if ctx.logarithm:
        powers = torch.where(mask, y.exp(), 0)
        of_grad, of_soft = a - total(powers * a), -a * powers * total(g)
    else:
        of_grad, of_soft = y * (a - total(y * a)), a * (g - total(y * g)) - g * total(y * a)
    return (
        torch.where(mask, of_grad, 0).to(grad.dtype),
        torch.where(mask, of_soft, 0).to(soft.dtype),
        None,
        None,
        None,
    )


def _save_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim = inputs
    ctx.save_for_backward(values, mask, output[0])
    ctx.mark_non_differentiable(output[1])


def _logsumexp_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    values, mask, result = ctx.saved_tensors
    grad, result = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, result))
    if values.dtype not in HALVES:
        return masked_logsumexp_backward(grad, values, result, mask), None, None, None
    # The rounding of a result in half precision would be multiplied by its size: computed again, in float32.
    wide = values.to(torch.float32)
    result, _ = masked_logsumexp(wide, mask, tuple(ctx.dim), True)
    return masked_logsumexp_backward(grad, wide, result, mask).to(values.dtype), None, None, None


def _save_logsumexp_backward(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _logsumexp_backward_twice(ctx: Any, again: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    grad, values, result, mask = ctx.saved_tensors
    weights = masked_logsumexp_backward(torch.ones_like(result), values, result, mask)
    of_weights = torch.where(mask, again, 0) * weights
    of_values = torch.where(mask, of_weights * grad, 0)
    of_grad = of_weights.sum_to_size(grad.shape).to(grad.dtype)
    return of_grad, of_values, -of_values.sum_to_size(result.shape).to(result.dtype), None


# Measured on one core, in microseconds, reference / compiled: softmax of 16,384 values 64 / 53, with its gradient
# 129 / 165; of 65,536 values 587 / 86 and 976 / 227.
masked_softmax.derive(_save_softmax, _softmax_backward)
masked_softmax_backward.derive(_save_softmax_backward, _softmax_backward_twice)
masked_logsumexp.derive(_save_logsumexp, _logsumexp_backward)
masked_logsumexp_backward.derive(_save_logsumexp_backward, _logsumexp_backward_twice)
