"""Vector norms of segments: which body runs, and the derivatives of any order.

Segments are described as in :mod:`maskgrad.kernels.segments`, but may be empty.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import segment_norms as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "segment_norm"]


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None = None, ord: float = 2.0) -> Tensor:
    """``torch.linalg.vector_norm`` of each segment, (n, *dense) -> (g, *dense); 0 where it is empty.

    ``ord`` is any number, inf and -inf included; the norm of halves is float32.
    """
    if runs_compiled("segment_norm", values, pointers, order):
        return compiled("segment_norm", values, pointers, order, float(ord))  # type: ignore[no-any-return]
    return reference.segment_norm(values, pointers, order, ord)


def _backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    arguments = grad, values, norm, pointers, order, ord
    if runs_compiled("segment_norm_backward", values, grad, norm, pointers, order):
        return compiled("segment_norm_backward", *arguments)  # type: ignore[no-any-return]
    return reference.segment_norm_backward(*arguments)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, ctx.ord = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _norm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
    if ctx.ord == 0:
        return None, None, None, None
    values, norm, pointers, order = ctx.saved_tensors
    return _backward(grad, values, norm, pointers, order, ctx.ord), None, None, None


KERNELS = (
    Kernel(
        "segment_norm", "segment_norms",
        "(Tensor values, Tensor pointers, Tensor? order, float ord) -> Tensor", FLOATS, 8_192,
        "vector norm of each segment", backward=_norm_backward, save=_save_norm,
    ),
    Kernel(
        "segment_norm_backward", "segment_norms",
        "(Tensor grad, Tensor values, Tensor norm, Tensor pointers, Tensor? order, float ord) -> Tensor",
        FLOATS, 8_192, "its derivative", leading=1, **through(reference.segment_norm_backward),
    ),
)  # fmt: skip
