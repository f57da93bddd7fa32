r"""Cross entropy of labels over the specified classes: each program handles whole positions.

The logits of a position are walked once, as those of a logsumexp; the loss is written next to it. The gradient is one
pass, for which the positions need not be whole.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cross_entropy import class_dim
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, power, reduce
from maskgrad.kernels.cuda.tiles import restored
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import masked_count
from maskgrad.kernels.segments.cuda import finish_powers, start_powers, step_powers


def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """As in the reference, except that a label outside the classes gives the loss NaN."""
    dim = class_dim(input)
    wide = torch.float32 if input.dtype in HALVES else input.dtype
    found, view = reduce(
        _LOSS, mask, (input,), (dim,), (wide, wide), few=(labels.unsqueeze(dim),), kind=smoothing != 0,
        numbers=(smoothing,), whole=True,
    )  # fmt: skip
    loss, normalizer = (restored(x, view, False) for x in found)
    return loss, normalizer


def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    dim, out = class_dim(input), torch.empty_like(input, requires_grad=False)
    few = [labels, grad, normalizer]
    if smoothing:
        few.append(smoothing / masked_count(mask, (dim,), False).clamp(min=1).to(normalizer.dtype))
    reduce(
        WRITES, mask, (input,), (dim,), (), few=[x.unsqueeze(dim) for x in few], out=out, of=_gradient,
        kind=smoothing != 0, numbers=(smoothing,),
    )  # fmt: skip
    return out


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """State of the logsumexp; the logit of the label, and whether it was found; sum and number of the logits."""
    best, total = start_powers(ROWS, COLUMNS, KIND, ACC)
    nothing = tl.zeros((ROWS, COLUMNS), tl.float64)
    none = tl.zeros((ROWS, COLUMNS), tl.int32)
    return best, total, tl.zeros((ROWS, COLUMNS), ACC), none, nothing, none


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, SMOOTHED: tl.constexpr
) -> tl.tensor:
    best, total, picked, named, added, number = state
    best, total = step_powers((best, total), there, x, at, n, SMOOTHED)
    chosen = there & (at == x[1])
    picked = tl.where(chosen, x[0], picked)
    if SMOOTHED:
        added += tl.where(there, x[0].to(tl.float64), 0)
    return best, total, picked, named | chosen.to(tl.int32), added, number + there.to(tl.int32)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, SMOOTHED: tl.constexpr) -> tl.tensor:
    best, total, picked, named, added, number = state
    largest, total = finish_powers((best, total), n, SMOOTHED)
    normalizer = largest + tl.log(total.to(largest.dtype))
    normalizer = tl.where(
        tl.abs(normalizer) < float("inf"), normalizer, float("nan")
    )  # inf - inf, as in torch
    all_n = tl.sum(number.to(tl.int64), axis=1)
    picked = tl.sum(picked, axis=1)
    if SMOOTHED:
        mean = (tl.sum(added, axis=1) / tl.maximum(all_n, 1)).to(picked.dtype)
        picked = (1 - n[0]) * picked + n[0] * mean
    loss = tl.where(tl.max(named, axis=1) > 0, normalizer - picked, float("nan"))
    return tl.where(all_n > 0, loss, 0), tl.where(all_n > 0, normalizer, 0)


_LOSS = Accumulator(_start, _step, _finish)


@compiled
def _gradient(x: tl.tensor, at: tl.tensor, n: tl.tensor, SMOOTHED: tl.constexpr) -> tl.tensor:
    """Of the logit, the label, the gradient of the loss, the logsumexp, and the weight of the smoothing."""
    slope = power(x[0] - x[3]) - tl.where(at == x[1], 1 - n[0], 0)
    if SMOOTHED:
        slope = slope - x[4]
    return x[2] * slope
