r"""Products of the specified entries, and of segments, in ordinary PyTorch.

.. math:: P = \prod_j x_j^{m_j}, \qquad \frac{\partial P}{\partial x_i} = m_i \prod_{j \ne i} x_j^{m_j}

An empty product is 1. Segments, which may be empty here, and shapes are those of :mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import filled
from maskgrad.kernels.invariant import is_invariant, tree_product
from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel, like
from maskgrad.kernels.segments import Rows
from maskgrad.kernels.smallest import any_of
from maskgrad.mode import mode


def product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> tuple[Tensor, Tensor]:
    """The product of the specified entries (1 where there is none), and whether there are any."""
    check_mask(values, mask)
    return _product(values, mask, dim, keepdim), any_of(mask, dim, keepdim)


def _product(values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """The product alone; half precision is multiplied in float32, integers in int64."""
    x = filled(values, mask, True if values.dtype is torch.bool else 1)
    wide = x.float() if x.dtype in HALVES else x
    if not dim or not x.ndim:
        result = (
            wide.prod(0)
            if not x.ndim
            else wide
            if wide.is_floating_point() or wide.is_complex()
            else wide.long()
        )
    elif is_invariant() and wide.is_floating_point():
        result = tree_product(wide, dim, keepdim)
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


@kernel("(Tensor values, Tensor pointers, Tensor? order) -> Tensor", REDUCIBLE, least=None)
def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """:func:`product_by_tree` as an operator: graphs do not have the sizes, on which the depth of a tree depends."""
    return product_by_tree(values, pointers, order).clone()  # no view of an argument


def product_by_tree(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """(n, *dense) -> (g, *dense), by a tree of pairwise products: derivatives of any order are right at zeros.

    float32 for half precision, int64 for integers and Booleans; 1 where a segment is empty.
    """
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
    "(Tensor grad, Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS, leading=1, least=None
)
def segment_prod_backward(grad: Tensor, values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """The gradient of the entries from that of their product, (n, *dense)."""
    with torch.enable_grad():
        x = values.detach().requires_grad_()
        return torch.autograd.grad(product_by_tree(x, pointers, order), x, grad)[0]


def segment_product(values: Tensor, rows: Rows) -> Tensor:
    """The product of each segment, (n, *dense) -> (g, *dense); 1 where it is empty.

    float32 for half precision, int64 for integers and Booleans.
    """
    if mode() == "graph":
        return torch.ops.maskgrad.segment_prod(values, rows.pointers, rows.order)  # type: ignore[no-any-return]
    return product_by_tree(values, rows.pointers, rows.order)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.maskgrad.segment_prod_backward(grad, *ctx.saved_tensors), None, None


def _fake(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    integers = not (values.is_floating_point() or values.is_complex())
    dtype = torch.int64 if integers else torch.promote_types(values.dtype, torch.float32)
    return values.new_empty((pointers.shape[0] - 1, *values.shape[1:]), dtype=dtype)


segment_prod.derive(_save, _backward)
segment_prod.fake = _fake
segment_prod_backward.fake = like(1)
