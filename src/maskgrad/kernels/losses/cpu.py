r"""Losses of two tensors, entry by entry: one pass that reads both and the mask, and another for the gradient.

The formulas are in the reference; here they are chosen before they are compiled. Sums add a block in the type of the
values and the blocks in float64, and pieces are cut by the shape alone: results do not depend on the number of threads.

Legend: x input, t target, g gradient of the result; n holds 0, 1 and the numbers q, limit, p, r of a distance.
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


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    if input.dtype != target.dtype:
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    out = write(_WRITE[kind], input, target, mask, None, numbers=numbers)
    if kind == "probabilities" and bool(out.sum().isnan()):
        # refuses what is no probability
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    return out


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if input.dtype != target.dtype:
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    total, count = sums_of_pairs(_ADD[kind], input, target, mask, None, range(input.ndim), numbers)
    if kind == "probabilities" and bool(total.isnan()):
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    return total.to(wide(input)).view(()), count.to(torch.int64).view(())


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    if input.dtype != target.dtype:
        return family.masked_loss_gradient.reference(grad, input, target, mask, kind, numbers)
    return write(_GRADIENT[kind], input, target, mask, grad, numbers=numbers)


@formula
def _distance(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    apart = abs(x - t)
    return n[4] * apart - n[5] if apart > n[3] else n[2] * apart * apart


@formula
def _logits(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    zero, one = n[0], n[1]
    log_sigmoid = (x if x < zero else zero) - logarithm_1p(exponential(-abs(x)))
    return (one - t) * x - log_sigmoid


@formula
def _probabilities(x: Any, t: Any, a: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    zero, one = n[0], n[1]
    yes, no, least = logarithm(x), logarithm_1p(-x), -100 * one
    loss = (t - one) * (no if no > least else least) - t * (yes if yes > least else least)
    return loss if x >= zero and x <= one and t >= zero and t <= one else zero / zero


@formula
def _distance_slope(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    apart, double, limit, p = x - t, n[2] + n[2], n[3], n[4]
    slope = double * apart if double != n[0] else n[0]
    return g * (p if apart > limit else (-p if apart < -limit else slope))


@formula
def _logits_slope(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    e = exponential(-abs(x))
    return g * ((n[1] if x >= n[0] else e) / (n[1] + e) - t)


@formula
def _probabilities_slope(x: Any, t: Any, g: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    spread, least = (n[1] - x) * x, n[1] * 1e-12
    return g * ((x - t) / (least if spread < least else spread))


def _counted(loss: Any) -> Any:
    """A loss, and 1, for sums of both."""

    @formula
    def pair(x: Any, t: Any, c: Any, n: Any) -> Any:
        return loss(x, t, c, c, c, c, n), n[1]

    return pair_loops(pair)


_LOSSES = {"distance": _distance, "logits": _logits, "probabilities": _probabilities}
_SLOPES = {"distance": _distance_slope, "logits": _logits_slope, "probabilities": _probabilities_slope}
_WRITE = {kind: entrywise(loss) for kind, loss in _LOSSES.items()}
_ADD = {kind: _counted(loss) for kind, loss in _LOSSES.items()}
_GRADIENT = {kind: entrywise(slope) for kind, slope in _SLOPES.items()}
