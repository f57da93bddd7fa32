r"""Products of the specified entries, and of segments, in ordinary PyTorch.

.. math:: P = \prod_j x_j^{m_j}, \qquad \frac{\partial P}{\partial x_i} = m_i \prod_{j \ne i} x_j^{m_j}

The derivative is P / x_i only where no factor is zero. So the kernel also returns the product R of the nonzero
factors, and the number Z of zeros: the derivative is R / x_i if Z is 0; if Z is 1, it is R at the zero
and 0 elsewhere; else it is 0. An empty product is 1. Segments, which may be empty here, and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.segments import segment_expand, segment_sum, widened
from maskgrad.kernels.smallest import any_of


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor, Tensor, Tensor)", REDUCIBLE
)
def masked_prod(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The product (1 if empty), that of the nonzero factors, the number of zeros, and the number of factors."""
    zeros = mask & (values == 0)
    product = plain_product(values, mask, dim, keepdim)
    wide = values.float() if values.dtype in HALVES else values
    rest = plain_product(wide, mask & (values != 0), dim, keepdim)
    counts = [x.sum(dim, keepdim) if dim else x.to(torch.int64) for x in (zeros, mask)]
    return product, rest, counts[0], counts[1]


def plain_product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """The product alone, differentiable; half precision is multiplied in float32, integers in int64."""
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


@kernel("(Tensor grad, Tensor values, Tensor rest, Tensor zeros, Tensor mask) -> Tensor", FLOATS, leading=1)
def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    """The gradient of the factors from that of their product; ``grad``, ``rest``, ``zeros`` broadcast to them."""
    x, g = values.to(rest.dtype), grad.to(rest.dtype)
    others = g * (rest / torch.where(mask & (values != 0), x, 1))
    at_zero = torch.where(zeros == 1, g * rest, 0)
    share = torch.where(zeros == 0, others, torch.where(values == 0, at_zero, 0))
    return torch.where(mask, share, 0).to(values.dtype)


def product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> tuple[Tensor, Tensor]:
    """The product of the specified entries (1 where there is none), and whether there are any."""
    check_mask(values, mask)
    found = masked_prod.fast(values, mask, dim, keepdim)
    if found is not None:
        return found[0], found[3] > 0
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
        # PyTorch's own derivative is differentiable, and multiplies the other factors where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = plain_product(x, mask, tuple(ctx.dim), ctx.keepdim)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None, None
    grad, rest, zeros = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, rest, zeros))
    return masked_prod_backward.compiled(grad, values, rest, zeros, mask), None, None, None


masked_prod.derive(_save_prod, _prod_backward)


@kernel("(Tensor values, Tensor pointers, Tensor? order) -> (Tensor, Tensor, Tensor)", REDUCIBLE)
def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(n, *dense) -> (g, *dense): the product (float32 for half precision, int64 for integers), R, and Z (int64)."""
    nothing = values == 0
    wide = widened(values)
    rest = product_by_tree(torch.where(nothing, torch.ones_like(wide), wide), pointers, order)
    zeros = segment_sum.reference(nothing.to(torch.int64), pointers, order)
    return product_by_tree(values, pointers, order), rest, zeros


def product_by_tree(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """The product alone, by a tree of pairwise products: derivatives of any order are right at zeros."""
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

    float32 for half precision, int64 for integers and Booleans.
    """
    # How deep a tree is depends on numbers that a graph does not have.
    in_graph = torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting()
    if in_graph or segment_prod.is_compiled_for(values, pointers, order):
        return segment_prod.compiled(values, pointers, order)[0]
    return product_by_tree(values, pointers, order)


def _save_segment_prod(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    values, pointers, order = inputs
    ctx.save_for_backward(values, *output[1:], pointers, order)
    ctx.mark_non_differentiable(*output[1:])


def _segment_prod_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    values, rest, zeros, pointers, order = ctx.saved_tensors
    again = torch.is_grad_enabled()
    if not again and torch._C._len_torch_dispatch_stack() > 0:  # being traced: how deep a tree is cannot be
        return segment_prod_backward.reference(grad, values, rest, zeros, pointers, order), None, None
    plain = not again and segment_prod_backward.is_compiled_for(grad, values, rest, zeros, pointers, order)
    if not plain or not rest.isfinite().all():
        # A tree of products can be differentiated again, and multiplies the other factors where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = product_by_tree(x, pointers, order)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None
    return segment_prod_backward.compiled(grad, values, rest, zeros, pointers, order), None, None


def _fake_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The reference multiplies in a tree, whose depth depends on the values of ``pointers``."""
    shape = (pointers.shape[0] - 1, *values.shape[1:])
    if not (values.is_floating_point() or values.is_complex()):
        return tuple(values.new_empty(shape, dtype=torch.int64) for _ in range(3))  # type: ignore[return-value]
    product = values.float() if values.dtype in HALVES else values
    rest = widened(values)
    return product.new_empty(shape), rest.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


segment_prod.derive(_save_segment_prod, _segment_prod_backward)
segment_prod.fake = _fake_prod
