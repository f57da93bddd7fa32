"""Vector norms of the specified entries: which body runs, and the derivatives of any order."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.reference import norms as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_norm"]

#: The orders that are compiled; the power of a number costs so much that nothing else matters.
ORDERS = (0.0, 1.0, 2.0, math.inf)


def masked_norm(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, ord: float = 2.0
) -> tuple[Tensor, Tensor]:
    """``torch.linalg.vector_norm`` of the specified entries, and whether there are any (Boolean).

    Where there are none the value is 0, and the gradient exactly 0. ``ord`` is any number but -inf.
    """
    check_mask(values, mask)
    if ord in ORDERS and runs_compiled("masked_norm", values, mask):
        return compiled("masked_norm", values, mask, dim, keepdim, float(ord))  # type: ignore[no-any-return]
    return reference.masked_norm(values, mask, dim, keepdim, ord)


def _backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    if runs_compiled("masked_norm_backward", values, grad, mask, norm):
        return compiled("masked_norm_backward", grad, values, mask, norm, ord)  # type: ignore[no-any-return]
    return reference.masked_norm_backward(grad, values, mask, norm, ord)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, ctx.ord = inputs
    norm, present = output
    ctx.mark_non_differentiable(present)
    ctx.save_for_backward(values, mask, norm)


def _norm_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.ord == 0:
        return (None,) * 5
    values, mask, norm = ctx.saved_tensors
    grad, norm = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, norm))
    return _backward(grad, values, mask, norm, ctx.ord), None, None, None, None


# Measured on 2 cores, in microseconds, reference / compiled, norm over dim 1: of 16,384 values 29 / 44, of 32,768
# 104 / 47, with its gradient 465 / 445.
KERNELS = (
    Kernel(
        "masked_norm", "norms",
        "(Tensor values, Tensor mask, int[] dim, bool keepdim, float ord) -> (Tensor, Tensor)",
        FLOATS, 32_768, "vector norm of the specified entries, and whether there are any",
        backward=_norm_backward, save=_save_norm,
    ),
    Kernel(
        "masked_norm_backward", "norms",
        "(Tensor grad, Tensor values, Tensor mask, Tensor norm, float ord) -> Tensor",
        FLOATS, 32_768, "its derivative", leading=1, **through(reference.masked_norm_backward),
    ),
)  # fmt: skip
