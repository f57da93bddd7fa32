r"""Products of the specified entries, in ordinary PyTorch.

.. math:: P = \prod_j x_j^{m_j}, \qquad \frac{\partial P}{\partial x_i} = m_i \prod_{j \ne i} x_j^{m_j}

The derivative is P / x_i only where no factor is zero. So besides P the kernel tells the product R of the factors that
are not zero, and the number Z of those that are: the derivative is R / x_i if Z is 0; if Z is 1, it is R at the zero
and 0 elsewhere; else it is 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.smallest import any_of

__all__ = ["masked_prod", "masked_prod_backward", "plain_product", "product"]


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor, Tensor, Tensor)",
    REDUCIBLE,
    min_numel=65_536,
)
def masked_prod(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The product (1 of nothing), that of the nonzero factors, the number of zeros, and the number of factors."""
    zeros = mask & (values == 0)
    product = plain_product(values, mask, dim, keepdim)
    wide = values.float() if values.dtype in HALVES else values
    rest = plain_product(wide, mask & (values != 0), dim, keepdim)
    counts = [x.sum(dim, keepdim) if dim else x.to(torch.int64) for x in (zeros, mask)]
    return product, rest, counts[0], counts[1]


def plain_product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """The product alone, differentiable; halves are multiplied in float32, integers in int64."""
    x = torch.where(mask, values, 1)
    wide = x.float() if x.dtype in HALVES else x
    if not dim or not x.ndim:
        result = (
            wide.prod(0)
            if not x.ndim
            else wide
            if wide.is_floating_point() or wide.is_complex()
            else wide.long()
        )
    elif len(dim) == 1:
        result = wide.prod(dim[0], keepdim=keepdim)
    elif len(dim) == x.ndim:
        result = wide.prod().reshape((1,) * x.ndim if keepdim else ())
    else:
        chosen = sorted(d % x.ndim for d in dim)
        left = x.ndim - len(chosen)
        result = wide.movedim(chosen, tuple(range(left, x.ndim))).flatten(left).prod(-1)
        for d in chosen if keepdim else ():
            result = result.unsqueeze(d)
    return result.to(values.dtype) if values.dtype in HALVES else result


@kernel(
    "(Tensor grad, Tensor values, Tensor rest, Tensor zeros, Tensor mask) -> Tensor",
    FLOATS,
    min_numel=65_536,
    leading=1,
)
def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    """The gradient of the factors from that of their product; ``grad``, ``rest``, ``zeros`` broadcast to them."""
    x, g = values.to(rest.dtype), grad.to(rest.dtype)
    others = g * (rest / torch.where(mask & (values != 0), x, 1))
    at_zero = torch.where(zeros == 1, g * rest, 0)
    share = torch.where(zeros == 0, others, torch.where(values == 0, at_zero, 0))
    return torch.where(mask, share, 0).to(values.dtype)


def product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> tuple[Tensor, Tensor]:
    """The product of the specified entries (1 where there is none), and whether there is one."""
    check_mask(values, mask)
    if masked_prod.is_compiled_for(values, mask):
        found, _, _, count = masked_prod.compiled(values, mask, dim, keepdim)
        return found, count > 0
    return plain_product(values, mask, dim, keepdim), any_of(mask, dim, keepdim)


def _save_prod(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, mask, ctx.dim, ctx.keepdim = inputs
    ctx.save_for_backward(values, mask, *output[1:3])
    ctx.mark_non_differentiable(*output[1:])


def _prod_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
    values, mask, rest, zeros = ctx.saved_tensors
    again = torch.is_grad_enabled()
    plain = not again and masked_prod_backward.is_compiled_for(grad, values, rest, zeros, mask)
    if not plain or not rest.isfinite().all():
        # PyTorch's own derivative can be differentiated again, and multiplies the others where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = plain_product(x, mask, tuple(ctx.dim), ctx.keepdim)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None, None
    grad, rest, zeros = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, rest, zeros))
    return masked_prod_backward.compiled(grad, values, rest, zeros, mask), None, None, None


masked_prod.derive(_save_prod, _prod_backward)
