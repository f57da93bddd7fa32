r"""Compacting the specified entries into a vector, and the inverse, in ordinary PyTorch.

.. math:: y_k = x_{i_k} \text{ for the positions } i_1 < i_2 < \dots \text{ where } m_i, \qquad
          \frac{\partial y_k}{\partial x_i} = 1 \text{ where } i = i_k, \text{ else } 0

Each of the two is the other's derivative. Masked values are not moved.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import REDUCIBLE, kernel

__all__ = ["masked_scatter", "masked_select"]


@kernel("(Tensor values, Tensor mask) -> Tensor", REDUCIBLE, check=check_mask)
def masked_select(values: Tensor, mask: Tensor) -> Tensor:
    """Equal to ``values[mask]``: (K,), in row-major order."""
    return values.masked_select(mask)


@kernel("(Tensor source, Tensor mask) -> Tensor", REDUCIBLE, numbers=lambda *args: args[1].numel())
def masked_scatter(source: Tensor, mask: Tensor) -> Tensor:
    """Return zeros with ``source``, (K,), at the K positions where ``mask`` is True, in row-major order."""
    return source.new_zeros(mask.shape).masked_scatter(mask, source)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _scatter_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return masked_scatter(grad, ctx.saved_tensors[0]), None


def _select_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return masked_select(grad, ctx.saved_tensors[0]), None


masked_select.derive(_save, _scatter_back)
masked_scatter.derive(_save, _select_back)
