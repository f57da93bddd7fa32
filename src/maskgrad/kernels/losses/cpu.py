r"""Losses of two tensors, entry by entry: one pass that reads both and the mask, and another for the gradient.

.. math:: L = \sum_i m_i\, \ell(x_i, t_i), \qquad \frac{\partial L}{\partial x_i} = g\, m_i\, \ell'(x_i, t_i)

The formulas are in the reference. A selection stands where a product with :math:`m` is written. Entries are treated in
blocks that stay in the first-level cache; sums add a block in the type of the values and the blocks in float64,
and pieces are cut by the shape alone: results do not depend on the number of threads.

Legend: x input, t target, m mask, g gradient of the result; q, limit, p, r the numbers of a distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import losses as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, reordered
from maskgrad.kernels.cpu.floating import encode, exponential
from maskgrad.kernels.cpu.logarithms import logarithm, logarithm_1p
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import like, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.losses import KINDS

BLOCK = 1024  # entries treated together
_DISTANCE, _LOGITS, _PROBABILITIES = range(3)


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    leading = walkable(input)
    out = like(leading, _wide(input))
    _run(out, leading, target, mask, kind, numbers, False)
    if kind == "probabilities" and bool(out.sum().isnan()):
        return family.masked_loss.reference(
            input, target, mask, kind, numbers
        )  # refuses what is no probability
    return out.to(input.dtype)


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    leading = walkable(input)
    unwritten = empty((), _wide(input)).expand(input.shape)
    total, count = _run(unwritten, leading, target, mask, kind, numbers, True)
    if kind == "probabilities" and bool(total.isnan()):
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    return total.to(_wide(input)), count


def _run(
    out: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float], add: bool
) -> tuple[Tensor, Tensor]:
    """Write the losses, or ``add`` them up; their sum, and how many there are."""
    steps = walk(input, out, _distinct(target, input), mask)
    parts = steps.tasks if add else 0
    totals, counts = empty(parts, torch.float64), empty(parts, torch.int64)
    run(
        _forward, *(flat(x) for x in steps.tensors), *steps.geometry(), KINDS.index(kind), *_scalars(input, numbers),
        add, totals.numpy(), counts.numpy(), tasks=steps.tasks, elements=input.numel(),
    )  # fmt: skip
    return totals.sum(), counts.sum()


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_gradient.reference(grad, input, target, mask, kind, numbers)
    leading = walkable(input)
    out = like(leading, input.dtype)
    steps = walk(out, grad.to(_wide(input)), leading, _distinct(target, leading), mask)
    run(
        _gradient, *(flat(x) for x in steps.tensors), *steps.geometry(), KINDS.index(kind), *_scalars(input, numbers),
        tasks=steps.tasks, elements=2 * input.numel(),
    )  # fmt: skip
    return out


def _distinct(target: Tensor, leading: Tensor) -> Tensor:
    """``target``, copied if it is broadcast."""
    repeated = any(
        size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)
    )
    return like(leading, target.dtype).copy_(target) if repeated else target


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in HALVES else x.dtype


def _scalars(input: Tensor, numbers: Sequence[float]) -> tuple[Any, ...]:
    """q, limit, p, r, and 0 and 1, in the type that losses are computed in."""
    number = np.float64 if input.dtype == torch.float64 else np.float32
    return (*(number(x) for x in numbers or (0, 0, 0, 0)), number(0), number(1))


@compiled
def _place(outer: Any, row: int, tensor: int) -> int:
    """Where row ``row`` of a tensor begins."""
    start = 0
    for axis in range(outer.shape[0] - 1, -1, -1):
        size = outer[axis, 0]
        start += row % size * outer[axis, 1 + tensor]
        row //= size
    return start


@compiled
def _losses(
    out: Any, x: Any, t: Any, m: Any, kind: int, q: Any, limit: Any, p: Any, r: Any, zero: Any, one: Any
) -> None:
    if kind == _DISTANCE:
        for k in range(out.size):
            a = abs(decode(x[k]) - decode(t[k]))
            loss = p * a - r if a > limit else q * a * a
            out[k] = loss if m[k] != 0 else zero
    elif kind == _LOGITS:
        for k in range(out.size):
            v = decode(x[k])
            log_sigmoid = (v if v < zero else zero) - logarithm_1p(exponential(-abs(v)))
            loss = (one - decode(t[k])) * v - log_sigmoid
            out[k] = loss if m[k] != 0 else zero
    else:
        least = -100 * one
        for k in range(out.size):
            v, y = decode(x[k]), decode(t[k])
            yes, no = logarithm(v), logarithm_1p(-v)
            yes, no = yes if yes > least else least, no if no > least else least
            loss = (y - one) * no - y * yes
            allowed = v >= zero and v <= one and y >= zero and y <= one
            loss = loss if allowed else zero / zero
            out[k] = loss if m[k] != 0 else zero


@compiled
def _gradients(
    out: Any, g: Any, x: Any, t: Any, m: Any, kind: int, q: Any, limit: Any, p: Any, zero: Any, one: Any
) -> None:
    if kind == _DISTANCE:
        q += q
        for k in range(out.size):
            d = decode(x[k]) - decode(t[k])
            slope = q * d if q != zero else zero
            slope = p if d > limit else (-p if d < -limit else slope)
            out[k] = encode(g[k] * slope if m[k] != 0 else zero, out[k])
    elif kind == _LOGITS:
        for k in range(out.size):
            v = decode(x[k])
            e = exponential(-abs(v))
            sigmoid = (one if v >= zero else e) / (one + e)
            out[k] = encode(g[k] * (sigmoid - decode(t[k])) if m[k] != 0 else zero, out[k])
    else:
        least = one * 1e-12
        for k in range(out.size):
            v = decode(x[k])
            spread = (one - v) * v
            slope = (v - decode(t[k])) / (least if spread < least else spread)
            out[k] = encode(g[k] * slope if m[k] != 0 else zero, out[k])


@reordered
def _total(losses: Any, m: Any, zero: Any, one: Any) -> Any:
    s, n = zero, zero
    for k in range(losses.size):  # sum and count in one type: both loops then have vectors of one length
        s += losses[k]
        n += one if m[k] != 0 else zero
    return s, n


@compiled
def _forward(
    x: Any, out: Any, t: Any, m: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int, kind: int, q: Any,
    limit: Any, p: Any, r: Any, zero: Any, one: Any, add: bool, totals: Any, counts: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t treats piece t % pieces of row t // pieces: writes its losses to ``out`` or, to ``add``, their sum.

    Steps are 1 for x and t, 0 or 1 for the mask.
    """
    ones, losses = np.ones(BLOCK, np.uint8), np.full(BLOCK, zero)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        x_row, o_row = _place(outer, row, 0), _place(outer, row, 1)
        t_row, m_row = _place(outer, row, 2), _place(outer, row, 3)
        total, count = 0.0, 0
        for a in range(start, min(start + piece, length), BLOCK):
            b = min(a + BLOCK, start + piece, length)
            block = losses[: b - a] if add else out[o_row + a : o_row + b]
            if steps[3] == 0 and m[m_row] == 0:
                block[:] = zero
                continue
            marks = m[m_row + a : m_row + b] if steps[3] else ones[: b - a]
            _losses(
                block,
                x[x_row + a : x_row + b],
                t[t_row + a : t_row + b],
                marks,
                kind,
                q,
                limit,
                p,
                r,
                zero,
                one,
            )
            if add:
                s, n = _total(block, marks, zero, one)
                total += s
                count += int(n)
        if add:
            totals[task], counts[task] = total, count


@compiled
def _gradient(
    out: Any, g: Any, x: Any, t: Any, m: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int, kind: int,
    q: Any, limit: Any, p: Any, r: Any, zero: Any, one: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """As ``_forward``; the step of the gradient is 0 or 1, too."""
    ones, same = np.ones(BLOCK, np.uint8), np.full(BLOCK, zero)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        o_row, g_row, x_row = _place(outer, row, 0), _place(outer, row, 1), _place(outer, row, 2)
        t_row, m_row = _place(outer, row, 3), _place(outer, row, 4)
        if steps[1] == 0:
            same[:] = g[g_row]
        for a in range(start, min(start + piece, length), BLOCK):
            b = min(a + BLOCK, start + piece, length)
            block = out[o_row + a : o_row + b]
            if steps[4] == 0 and m[m_row] == 0:
                block[:] = encode(zero, out[0])
                continue
            marks = m[m_row + a : m_row + b] if steps[4] else ones[: b - a]
            given = g[g_row + a : g_row + b] if steps[1] else same[: b - a]
            _gradients(
                block, given, x[x_row + a : x_row + b], t[t_row + a : t_row + b], marks, kind, q, limit, p, zero, one
            )  # fmt: skip
