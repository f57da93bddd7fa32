r"""Product of each segment of a list of entries, in ordinary PyTorch.

.. math:: P_k = \prod_{i \in k} x_i, \qquad \frac{\partial P_k}{\partial x_i} = \prod_{j \in k, j \ne i} x_j

The derivative is P / x_i only where no factor is zero. So besides P the kernel tells the product R of the factors that
are not zero, and the number Z of those that are: the derivative is R / x_i if Z is 0; if Z is 1, it is R at the zero
and 0 elsewhere; else it is 0. The product of a segment without entries is 1. Segments and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel
from maskgrad.kernels.segments import segment_expand, segment_sum, widened

__all__ = ["plain_product", "segment_prod", "segment_prod_backward", "segment_product"]


@kernel(
    "(Tensor values, Tensor pointers, Tensor? order) -> (Tensor, Tensor, Tensor)", REDUCIBLE, min_numel=8_192
)
def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(n, *dense) -> (g, *dense): the product (float32 for halves, int64 for integers), R, and Z (int64)."""
    nothing = values == 0
    wide = widened(values)
    rest = plain_product(torch.where(nothing, torch.ones_like(wide), wide), pointers, order)
    zeros = segment_sum.reference(nothing.to(torch.int64), pointers, order)
    return plain_product(values, pointers, order), rest, zeros


def plain_product(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """The product alone, by a tree of products of two: zeros are harmless in derivatives of any order."""
    if values.dtype in HALVES:
        values = values.float()
    elif not (values.is_floating_point() or values.is_complex()):
        values = values.to(torch.int64)
    if order is not None:
        values = values.index_select(0, order)
    counts, number = pointers.diff(), values.shape[0]
    segments = counts.shape[0]
    index = torch.repeat_interleave(counts, output_size=number)
    present = (counts > 0).nonzero().squeeze(1)
    one = torch.ones((), dtype=values.dtype, device=values.device)
    while index.shape[0] > present.shape[0]:
        place = torch.arange(index.shape[0], device=index.device)
        rank = place - (counts.cumsum(0) - counts)[index]
        left = (rank % 2 == 0).nonzero().squeeze(1)
        paired = (rank + 1 < counts[index])[left].reshape(-1, *(1,) * (values.ndim - 1))
        other = values[(left + 1).clamp(max=index.shape[0] - 1)]
        values, index = values[left] * torch.where(paired, other, one), index[left]
        counts = (counts + 1) // 2
    if present.shape[0] == segments:
        return values
    return one.expand(segments, *values.shape[1:]).index_copy(0, present, values)


@kernel(
    "(Tensor grad, Tensor values, Tensor rest, Tensor zeros, Tensor pointers, Tensor? order) -> Tensor",
    FLOATS,
    min_numel=8_192,
    leading=1,
)
def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """The gradient of the entries from that of their product, (n, *dense)."""
    number, x, nothing = len(values), widened(values), values == 0
    share = rest * grad.to(rest.dtype)
    few = segment_expand.reference(zeros, pointers, order, number)
    others = segment_expand.reference(share, pointers, order, number) / torch.where(nothing, 1, x)
    at_zero = segment_expand.reference(torch.where(zeros == 1, share, 0), pointers, order, number)
    return torch.where(few == 0, others, torch.where(nothing, at_zero, 0)).to(values.dtype)


def segment_product(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The product of each segment, (n, *dense) -> (g, *dense); 1 where it is empty.

    That of halves is float32, that of integers and Booleans int64.
    """
    if segment_prod.is_compiled_for(values, pointers, order):
        return segment_prod.compiled(values, pointers, order)[0]
    return plain_product(values, pointers, order)


def _save_prod(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    values, pointers, order = inputs
    ctx.save_for_backward(values, *output[1:], pointers, order)
    ctx.mark_non_differentiable(*output[1:])


def _prod_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    values, rest, zeros, pointers, order = ctx.saved_tensors
    again = torch.is_grad_enabled()
    if not again and torch._C._len_torch_dispatch_stack() > 0:  # being traced: how deep a tree is cannot be
        return segment_prod_backward.reference(grad, values, rest, zeros, pointers, order), None, None
    plain = not again and segment_prod_backward.is_compiled_for(grad, values, rest, zeros, pointers, order)
    if not plain or not rest.isfinite().all():
        # A tree of products can be differentiated again, and multiplies the others where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = plain_product(x, pointers, order)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None
    return segment_prod_backward.compiled(grad, values, rest, zeros, pointers, order), None, None


def _fake_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The reference multiplies in a tree, whose depth depends on the numbers in ``pointers``."""
    shape = (pointers.shape[0] - 1, *values.shape[1:])
    if not (values.is_floating_point() or values.is_complex()):
        return tuple(values.new_empty(shape, dtype=torch.int64) for _ in range(3))  # type: ignore[return-value]
    product = values.float() if values.dtype in HALVES else values
    rest = widened(values)
    return product.new_empty(shape), rest.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


segment_prod.derive(_save_prod, _prod_backward)
segment_prod.fake = _fake_prod
