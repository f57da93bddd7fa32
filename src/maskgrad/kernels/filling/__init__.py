r"""Replacing masked entries by a constant, in ordinary PyTorch.

.. math:: y_i = x_i \text{ where } m_i, \text{ else filler}, \qquad
          \frac{\partial y_i}{\partial x_i} = 1 \text{ where } m_i, \text{ else } 0

A selection in both directions: masked values, even NaN, reach neither the result nor a gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import LEAST, REDUCIBLE, kernel, like
from maskgrad.kernels.selection import gradients_are_stacked
from maskgrad.kernels.smallest import smallest
from maskgrad.mode import TRACED, can_read, mode

#: Fewer values with a gradient are filled by PyTorch, whose backward pass does not enter Python: a step of an MLP of
#: 64 x 200 takes 0.9 of the time.
RECORDED = 16_384
#: Fewer are multiplied by the mask as integers: 32,768 take 12 µs as in the loop, and 35 µs less to get there
#: (3 % of an MLP, whose goal needs them).
FEW = 65_536
#: The integers of a size in bytes.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@kernel("(Tensor values, Tensor mask, Scalar filler) -> Tensor", REDUCIBLE, fuses=True, in_graphs=65_536)
def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """``torch.where(mask, values, filler)`` with a scalar of the category of ``values``; any order of derivatives."""
    return torch.where(mask, values, filler)


def filled(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """``torch.where(mask, values, filler)``, of shapes that broadcast, for a formula to compute with.

    At a random mask ``torch.where`` branches at each entry: 65,536 values take 230 µs, the loop 8 to 15.
    """
    if mode() in TRACED:  # first, because graphs must not depend on sizes
        if values.shape == mask.shape:
            return masked_filling(values, mask, filler)
        return torch.where(mask, values, filler)
    recorded = values.requires_grad and torch.is_grad_enabled()
    if not recorded and is_zero(filler) and mask.numel() < FEW and _has_bits(values, mask, 4):
        return (values.view(BITS[values.element_size()]) * mask).view(values.dtype)
    if mask.numel() >= (RECORDED if recorded else LEAST):
        if values.shape != mask.shape:
            shape = torch.broadcast_shapes(values.shape, mask.shape)
            values, mask = values.expand(shape), mask.expand(shape)
        return masked_filling(values, mask, filler)
    return torch.where(mask, values, filler)


def cleared(values: Tensor, mask: Tensor, factor: Tensor | None = None) -> Tensor:
    """0 where masked, in the memory of ``values``, which nothing else reads: fresh memory takes longer than the fill.

    ``factor`` multiplies what is left. A step with four poolings of 16 x 128 x 256 takes 0.9 of the time. A product of
    the bits and the mask is exact, and takes 7 µs for 65,536 values, a loop that writes where it reads 64 to 90.
    """
    if factor is not None:
        alike = factor.dtype is values.dtype and not (factor.requires_grad or values.requires_grad)
        values = values.mul_(factor) if alike and _has_bits(values, mask) else values * factor
    if values.requires_grad or not _has_bits(values, mask):
        return filled(values, mask, 0)
    bits = values.view(BITS[values.element_size()])
    if mask.ndim and not mask.stride(-1):  # as vectors: 524,288 values take 39 µs, a loop 111
        bits.bitwise_and_(smallest(mask).to(bits.dtype).neg_())
    else:
        bits.mul_(mask)
    return values


def _has_bits(values: Tensor, mask: Tensor, at_most: int = 8) -> bool:
    """Whether values can be multiplied by their mask as integers (vectorised up to 4 bytes)."""
    return can_read(values, mask) and values.element_size() <= at_most and not gradients_are_stacked()


def is_zero(filler: float) -> bool:
    """Whether a filler has no bits; -0.0 has one."""
    return filler == 0 and math.copysign(1, filler) > 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return masked_filling(grad, ctx.saved_tensors[0], 0), None, None


masked_filling.derive(_save, _backward)
masked_filling.fake = like(0)


class _WithGradientAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return values.clone()  # removed by compilers

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.where(ctx.saved_tensors[0], grad, 0), None


def with_gradient_at(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values unchanged, with their gradient set to 0 where masked."""
    return _WithGradientAt.apply(values, mask)  # type: ignore[no-any-return, no-untyped-call]


# A composite operator: Dynamo shows it in its graphs, and compilers decompose it. For a function that
# Dynamo traces itself, the second derivative is silently lost.
torch.library.define("maskgrad::with_gradient_at", "(Tensor values, Tensor mask) -> Tensor")
torch.library.impl("maskgrad::with_gradient_at", "CompositeImplicitAutograd", with_gradient_at)
