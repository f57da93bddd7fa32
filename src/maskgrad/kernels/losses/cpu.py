r"""Losses of a difference: one pass that reads both tensors and the mask, and another for the gradient.

.. math:: L = \sum_i m_i\, \ell(x_i - t_i), \qquad \frac{\partial L}{\partial x_i} = g\, m_i\, \ell'(x_i - t_i)

The formulas are in the reference. A selection stands where a product with :math:`m` is written. Sums add a block in the
type of the values and the blocks in float64, and pieces are cut by the shape alone: results do not depend on the number
of threads.

Legend: x input, t target, m mask, g gradient of the result; n the scalars 0, 1 and q, limit, p, r of a distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import losses as family
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.loops import entrywise, wide, write
from maskgrad.kernels.cpu.sums import pair_loops, sums_of_pairs


def masked_distance_sum(
    input: Tensor, target: Tensor, mask: Tensor, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if input.dtype != target.dtype:
        return family.masked_distance_sum.reference(input, target, mask, numbers)
    every, dtypes = range(input.ndim), (wide(input), torch.int64)
    total, count = sums_of_pairs(_SUMS, input, target, mask, None, every, numbers, False, dtypes)
    return total, count


def masked_distance_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, numbers: Sequence[float]
) -> Tensor:
    if input.dtype != target.dtype:
        return family.masked_distance_gradient.reference(grad, input, target, mask, numbers)
    return write(_GRADIENT, input, target, mask, grad, numbers=numbers)


@formula
def _counted(x: Any, t: Any, c: Any, n: Any) -> Any:
    away = abs(x - t)
    return n[4] * away - n[5] if away > n[3] else n[2] * away * away, n[1]


@formula
def _gradient(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    away = x - t
    slope = (n[2] + n[2]) * away if n[2] != n[0] else n[0]
    return g * (n[4] if away > n[3] else (-n[4] if away < -n[3] else slope))


_SUMS, _GRADIENT = pair_loops(_counted), entrywise(_gradient)
