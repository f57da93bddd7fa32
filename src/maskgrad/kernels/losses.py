"""Losses of two tensors, entry by entry: which body runs, and the derivatives of any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import losses as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_loss", "masked_loss_gradient", "masked_loss_sum"]


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    """The loss of each entry where the mask holds, else 0; three tensors of one shape, the first two of one dtype."""
    if runs_compiled("masked_loss", input, target, mask):
        return compiled("masked_loss", input, target, mask, kind, numbers)  # type: ignore[no-any-return]
    return reference.masked_loss(input, target, mask, kind, numbers)


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum of these losses (float32 for halves), and how many there are (int64)."""
    if runs_compiled("masked_loss_sum", input, target, mask):
        return compiled("masked_loss_sum", input, target, mask, kind, numbers)  # type: ignore[no-any-return]
    return reference.masked_loss_sum(input, target, mask, kind, numbers)


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    """``grad``, which broadcasts to ``input``, times the derivative of the loss by ``input``."""
    if runs_compiled("masked_loss_gradient", input, grad, target, mask):
        return compiled("masked_loss_gradient", grad, input, target, mask, kind, numbers)  # type: ignore[no-any-return]
    return reference.masked_loss_gradient(grad, input, target, mask, kind, numbers)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.kind, ctx.numbers = inputs
    ctx.save_for_backward(*tensors)
    if isinstance(output, tuple):
        ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    input, target, mask = ctx.saved_tensors
    by_input = by_target = None
    opposite = ctx.kind == "distance"
    if ctx.needs_input_grad[0] or (opposite and ctx.needs_input_grad[1]):
        by_input = masked_loss_gradient(grad, input, target, mask, ctx.kind, ctx.numbers)
    if ctx.needs_input_grad[1]:
        by_target = (
            -by_input
            if opposite and by_input is not None
            else reference.masked_loss_target_gradient(grad, input, target, mask, ctx.kind)
        )
    return by_input, by_target, None, None, None


def _fake(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    return torch.empty_like(input)


def _fake_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    return torch.empty_like(input)


_SIGNATURE = "(Tensor input, Tensor target, Tensor mask, str kind, float[] numbers)"

KERNELS = (
    Kernel(
        "masked_loss", "losses", f"{_SIGNATURE} -> Tensor", FLOATS, 32_768,
        "the loss of each specified entry, 0 elsewhere", backward=_backward, save=_save, fake=_fake,
    ),
    Kernel(
        "masked_loss_sum", "losses", f"{_SIGNATURE} -> (Tensor, Tensor)", FLOATS, 32_768,
        "the sum of the losses of the specified entries, and their number", backward=_backward, save=_save,
    ),
    Kernel(
        "masked_loss_gradient", "losses",
        "(Tensor grad, Tensor input, Tensor target, Tensor mask, str kind, float[] numbers) -> Tensor", FLOATS, 32_768,
        "the derivative of a loss by its input, exactly 0 where unspecified", leading=1,
        fake=_fake_gradient, **through(reference.masked_loss_gradient),
    ),
)  # fmt: skip
