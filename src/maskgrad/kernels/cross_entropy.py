"""Cross entropy of labels over the specified classes: which body runs, and the derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import cross_entropy as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_cross_entropy", "masked_cross_entropy_gradient"]


def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The loss of each position (float32 for halves), 0 where no class is specified, and the logsumexp.

    Each label is the number of a class, a specified one at each position that has any.
    """
    if runs_compiled("masked_cross_entropy", input, mask, labels):
        return compiled("masked_cross_entropy", input, mask, labels, smoothing)  # type: ignore[no-any-return]
    return reference.masked_cross_entropy(input, mask, labels, smoothing)


def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    """The gradient of the input from that of the losses; ``normalizer`` is the logsumexp."""
    name, arguments = "masked_cross_entropy_gradient", (grad, input, mask, labels, normalizer, smoothing)
    if runs_compiled(name, input, grad, mask, labels, normalizer):
        return compiled(name, *arguments)  # type: ignore[no-any-return]
    return reference.masked_cross_entropy_gradient(*arguments)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, mask, labels, ctx.smoothing = inputs
    ctx.save_for_backward(input, mask, labels, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    input, mask, labels, normalizer = ctx.saved_tensors
    found = masked_cross_entropy_gradient(grad, input, mask, labels, normalizer, ctx.smoothing)
    return found, None, None, None


def _fake(input: Tensor, mask: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    shapes = reference.masked_cross_entropy(input, mask, labels, smoothing)
    return shapes[0].contiguous(), shapes[1].contiguous()


def _fake_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    return torch.empty_like(input)


KERNELS = (
    Kernel(
        "masked_cross_entropy", "cross_entropy",
        "(Tensor input, Tensor mask, Tensor labels, float smoothing) -> (Tensor, Tensor)", FLOATS, 32_768,
        "cross entropy of labels over the specified classes, and the logsumexp", backward=_backward, save=_save,
        fake=_fake,
    ),
    Kernel(
        "masked_cross_entropy_gradient", "cross_entropy",
        "(Tensor grad, Tensor input, Tensor mask, Tensor labels, Tensor normalizer, float smoothing) -> Tensor", FLOATS,
        32_768, "the derivative of a cross entropy by its logits, exactly 0 where unspecified", leading=1,
        fake=_fake_gradient, **through(reference.masked_cross_entropy_gradient),
    ),
)  # fmt: skip
