"""Products of segments: which body runs, and the derivatives of any order.

Segments are described as in :mod:`maskgrad.kernels.segments`, but may be empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, REDUCIBLE, Kernel
from maskgrad.kernels.reference import segment_products as reference
from maskgrad.kernels.reference.reductions import HALVES
from maskgrad.kernels.reference.segments import widened
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "segment_prod"]


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The product of each segment, (n, *dense) -> (g, *dense); 1 where it is empty.

    That of halves is float32, that of integers and Booleans int64.
    """
    if runs_compiled("segment_prod", values, pointers, order):
        return compiled("segment_prod", values, pointers, order)[0]  # type: ignore[no-any-return]
    return reference.plain_product(values, pointers, order)


def _save_prod(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    values, pointers, order = inputs
    ctx.save_for_backward(values, *output[1:], pointers, order)
    ctx.mark_non_differentiable(*output[1:])


def _prod_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    values, rest, zeros, pointers, order = ctx.saved_tensors
    again = torch.is_grad_enabled()
    if not again and torch._C._len_torch_dispatch_stack() > 0:  # being traced: how deep a tree is cannot be
        return reference.segment_prod_backward(grad, values, rest, zeros, pointers, order), None, None
    plain = not again and runs_compiled("segment_prod_backward", values, grad, rest, zeros, pointers, order)
    if not plain or not rest.isfinite().all():
        # A tree of products can be differentiated again, and multiplies the others where R / x would be NaN.
        with torch.enable_grad():
            x = values.view_as(values) if again else values.detach().requires_grad_()
            product = reference.plain_product(x, pointers, order)
            return torch.autograd.grad(product, x, grad, create_graph=again)[0], None, None
    return compiled("segment_prod_backward", grad, values, rest, zeros, pointers, order), None, None


def _fake_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The reference multiplies in a tree, whose depth depends on the numbers in ``pointers``."""
    shape = (pointers.shape[0] - 1, *values.shape[1:])
    if not (values.is_floating_point() or values.is_complex()):
        return tuple(values.new_empty(shape, dtype=torch.int64) for _ in range(3))  # type: ignore[return-value]
    product = values.float() if values.dtype in HALVES else values
    rest = widened(values)
    return product.new_empty(shape), rest.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


KERNELS = (
    Kernel(
        "segment_prod", "segment_products",
        "(Tensor values, Tensor pointers, Tensor? order) -> (Tensor, Tensor, Tensor)", REDUCIBLE, 8_192,
        "product of each segment, and what its derivative needs", backward=_prod_backward, save=_save_prod,
        fake=_fake_prod,
    ),
    Kernel(
        "segment_prod_backward", "segment_products",
        "(Tensor grad, Tensor values, Tensor rest, Tensor zeros, Tensor pointers, Tensor? order) -> Tensor",
        FLOATS, 8_192, "its derivative", leading=1,
    ),
)  # fmt: skip
