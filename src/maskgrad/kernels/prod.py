"""Products of the specified entries: which body runs, and the derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, REDUCIBLE, Kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.reference import prod as reference
from maskgrad.kernels.selection import compiled, runs_compiled
from maskgrad.kernels.smallest import any_of

__all__ = ["KERNELS", "masked_prod"]


def masked_prod(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> tuple[Tensor, Tensor]:
    """The product of the specified entries (1 where there is none), and whether there is one."""
    check_mask(values, mask)
    if runs_compiled("masked_prod", values, mask):
        product, _, _, count = compiled("masked_prod", values, mask, dim, keepdim)
        return product, count > 0
    present = any_of(mask, dim, keepdim)
    return reference.plain_product(values, mask, dim, keepdim), present


def _save_prod(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, mask, ctx.dim, ctx.keepdim = inputs
    ctx.save_for_backward(values, mask, *output[1:3])
    ctx.mark_non_differentiable(*output[1:])


def _prod_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
    values, mask, rest, zeros = ctx.saved_tensors
    again = torch.is_grad_enabled()
    plain = not again and runs_compiled("masked_prod_backward", values, grad, rest, zeros, mask)
    if not plain or not rest.isfinite().all():
        # PyTorch's own derivative can be differentiated again, and multiplies the others where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = reference.plain_product(x, mask, tuple(ctx.dim), ctx.keepdim)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None, None
    grad, rest, zeros = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, rest, zeros))
    return compiled("masked_prod_backward", grad, values, rest, zeros, mask), None, None, None


KERNELS = (
    Kernel(
        "masked_prod", "prod",
        "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor, Tensor, Tensor)", REDUCIBLE, 65_536,
        "product of the specified entries, and what its derivative needs", backward=_prod_backward, save=_save_prod,
    ),
    Kernel(
        "masked_prod_backward", "prod",
        "(Tensor grad, Tensor values, Tensor rest, Tensor zeros, Tensor mask) -> Tensor", FLOATS, 65_536,
        "its derivative", leading=1,
    ),
)  # fmt: skip
