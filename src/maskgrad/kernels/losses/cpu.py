r"""Losses of two tensors, entry by entry: one pass that reads both and the mask, and another for the gradient.

.. math:: L = \sum_i m_i\, \ell(x_i, t_i), \qquad \frac{\partial L}{\partial x_i} = g\, m_i\, \ell'(x_i, t_i)

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
from maskgrad.kernels.cpu.floating import exponential
from maskgrad.kernels.cpu.lines import pair_loops, sums_of_pairs
from maskgrad.kernels.cpu.logarithms import logarithm, logarithm_1p
from maskgrad.kernels.cpu.loops import entrywise, wide, write

_NONE = (0.0, 0.0, 0.0, 0.0)


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    out = write(_LOSSES[kind], input, target, mask, numbers=numbers or _NONE)
    if kind == "probabilities" and bool(out.sum().isnan()):  # the reference raises the error
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    return out


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    every, dtypes = range(input.ndim), (wide(input), torch.int64)
    total, count = sums_of_pairs(
        _SUMS[kind], input, target, mask, None, every, numbers or _NONE, False, dtypes
    )
    if kind == "probabilities" and bool(total.isnan()):
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    return total, count


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_gradient.reference(grad, input, target, mask, kind, numbers)
    return write(_GRADIENTS[kind], input, target, mask, grad, numbers=numbers or _NONE)


@formula
def _distance(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    away = abs(x - t)
    return n[4] * away - n[5] if away > n[3] else n[2] * away * away


@formula
def _logits(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    log_sigmoid = (x if x < n[0] else n[0]) - logarithm_1p(exponential(-abs(x)))
    return (n[1] - t) * x - log_sigmoid


@formula
def _probabilities(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    least = -100 * n[1]
    yes, no = logarithm(x), logarithm_1p(-x)
    yes, no = yes if yes > least else least, no if no > least else least
    loss = (t - n[1]) * no - t * yes
    return loss if x >= n[0] and x <= n[1] and t >= n[0] and t <= n[1] else n[0] / n[0]


@formula
def _distance_gradient(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    away = x - t
    slope = (n[2] + n[2]) * away if n[2] != n[0] else n[0]
    return g * (n[4] if away > n[3] else (-n[4] if away < -n[3] else slope))


@formula
def _logits_gradient(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    e = exponential(-abs(x))
    return g * ((n[1] if x >= n[0] else e) / (n[1] + e) - t)


@formula
def _probabilities_gradient(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    least, spread = n[1] * 1e-12, (n[1] - x) * x
    return g * ((x - t) / (least if spread < least else spread))


def _counted(loss: Any) -> tuple[Any, Any]:
    """Make loops that sum a loss and count its entries."""

    @formula
    def of(x: Any, t: Any, c: Any, n: Any) -> Any:
        return loss(x, t, c, c, c, c, n), n[1]

    return pair_loops(of)


_FORMULAS = {"distance": _distance, "logits": _logits, "probabilities": _probabilities}
_LOSSES = {kind: entrywise(loss) for kind, loss in _FORMULAS.items()}
_SUMS = {kind: _counted(loss) for kind, loss in _FORMULAS.items()}
_GRADIENTS = {
    "distance": entrywise(_distance_gradient),
    "logits": entrywise(_logits_gradient),
    "probabilities": entrywise(_probabilities_gradient),
}
