"""Logarithms of sums of exponentials of segments: which body runs, and the derivatives of any order.

Segments are described as in :mod:`maskgrad.kernels.segments`, but may be empty.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import segment_exponentials as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "segment_logsumexp"]


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """``torch.logsumexp`` of each segment, (n, *dense) -> (g, *dense), float32 for halves; -inf where it is empty."""
    if runs_compiled("segment_logsumexp", values, pointers, order):
        return compiled("segment_logsumexp", values, pointers, order)  # type: ignore[no-any-return]
    return reference.segment_logsumexp(values, pointers, order)


def _backward(grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    arguments = grad, values, result, pointers, order
    if runs_compiled("segment_logsumexp_backward", values, *arguments):
        return compiled("segment_logsumexp_backward", *arguments)  # type: ignore[no-any-return]
    return reference.segment_logsumexp_backward(*arguments)


def _save_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _logsumexp_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _backward(grad, *ctx.saved_tensors), None, None


KERNELS = (
    Kernel(
        "segment_logsumexp", "segment_exponentials",
        "(Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS, 8_192,
        "logarithm of the sum of exponentials of each segment", backward=_logsumexp_backward, save=_save_logsumexp,
    ),
    Kernel(
        "segment_logsumexp_backward", "segment_exponentials",
        "(Tensor grad, Tensor values, Tensor result, Tensor pointers, Tensor? order) -> Tensor", FLOATS, 8_192,
        "its derivative", leading=1, **through(reference.segment_logsumexp_backward),
    ),
)  # fmt: skip
