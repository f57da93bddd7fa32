"""Values where a mask holds, a constant elsewhere: which body runs, and the derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import REDUCIBLE, Kernel
from maskgrad.kernels.reference import filling as reference
from maskgrad.kernels.selection import compiled, compiled_body, runs_compiled

__all__ = ["KERNELS", "masked_filling", "write_where_"]


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """``torch.where(mask, values, filler)`` with a number of the category of ``values``; any order of derivatives."""
    if runs_compiled("masked_filling", values, mask):
        return compiled("masked_filling", values, mask, filler)  # type: ignore[no-any-return]
    return reference.masked_filling(values, mask, filler)


def write_where_(target: Tensor, values: Tensor, mask: Tensor) -> None:
    """``torch.where(mask, values, target, out=target)``, all of one shape, the first two of one dtype; no derivative.

    PyTorch branches at each entry, which at a random mask takes six times as long.
    """
    if (
        runs_compiled("masked_filling", target, mask, values)
        and not target.is_cuda
        and compiled_body("filling", "write_where_")(target, values, mask)
    ):
        torch.autograd.graph.increment_version(target)
    else:
        torch.where(mask, values, target, out=target)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return masked_filling(grad, ctx.saved_tensors[0], 0), None, None


def _fake(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    return torch.empty_like(values)


# Measured on 2 cores, in microseconds, reference / compiled: 16,384 values at a random mask 15 / 29, 32,768 64 / 30,
# with the gradient 120 / 105.
KERNELS = (
    Kernel(
        "masked_filling", "filling", "(Tensor values, Tensor mask, Scalar filler) -> Tensor", REDUCIBLE, 32_768,
        "the values where the mask holds, a constant elsewhere", backward=_backward, save=_save, fake=_fake,
    ),
)  # fmt: skip
