r"""Logarithm of the sum of exponentials of each segment of a list of entries: each segment is read where it lies.

.. math:: \ell_k = M_k + \log \sum_{i \in k} e^{x_i - M_k}, \qquad
          \frac{\partial \ell_k}{\partial x_i} = e^{x_i - \ell_k}

with :math:`M_k` the largest entry; the second reading finds the segment in the cache. Exponentials are added in
float64; halves are converted to float32 before. One task is one segment.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, reordered
from maskgrad.kernels.cpu.floating import exponential, ordered, unordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cpu import bounds, entries
from maskgrad.kernels.softmax import segments as family


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    values = values.detach()
    if not values.numel():
        return family.segment_logsumexp.reference(values, pointers, order)
    v = values.float() if values.dtype in HALVES else values
    out = empty((pointers.shape[0] - 1, *values.shape[1:]), v.dtype)
    run(
        _logsumexp, entries(v), *bounds(pointers, order), math.prod(values.shape[1:]), out.view(-1).numpy(),
        tasks=len(out), elements=values.numel(),
    )  # fmt: skip
    return out


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach()
    v = values.float() if values.dtype in HALVES else values
    out = empty(values.shape, v.dtype)
    if out.numel():
        g, total = (x.detach().to(v.dtype) for x in (grad, result))
        run(
            _backward, entries(v), entries(g), entries(total), *bounds(pointers, order),
            math.prod(values.shape[1:]), out.view(-1).numpy(), tasks=len(pointers) - 1, elements=2 * out.numel(),
        )  # fmt: skip
    return out.to(values.dtype)


@compiled
def _largest(v: Any) -> Any:
    """Among integers that have the order of the numbers: NaN wins, and the loop is vector code."""
    best = ordered(v[0], 0)
    for i in range(v.size):
        key = ordered(v[i], 0)
        best = key if key > best else best
    return unordered(best)


@reordered
def _add_powers(v: Any, shift: Any) -> float:
    s = 0.0
    for i in range(v.size):
        s += exponential(v[i] - shift)
    return s


@compiled
def _longest(pointers: Any, lo: int, hi: int) -> int:
    longest = 0
    for k in range(lo, hi):
        longest = max(longest, pointers[k + 1] - pointers[k])
    return longest


@compiled
def _gather(v: Any, places: Any, width: int, column: int, together: Any) -> None:
    if width == 1:
        for i in range(places.size):
            together[i] = v[places[i]]
    else:
        for i in range(places.size):
            together[i] = v[places[i] * width + column]


@compiled
def _logsumexp(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:
    """What does not lie together is brought together first: exponentials are vector code."""
    together = np.empty(0 if width == 1 and not has_order else _longest(pointers, lo, hi), v.dtype)
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        for j in range(width):
            if start == stop:
                out[k * width + j] = -np.inf
                continue
            if width == 1 and not has_order:
                segment = v[start:stop]
            else:
                segment = together[: stop - start]
                if has_order:
                    _gather(v, order[start:stop], width, j, segment)
                else:
                    for i in range(segment.size):
                        segment[i] = v[(start + i) * width + j]
            shift = _largest(segment)
            if not np.isfinite(shift):
                shift = v.dtype.type(0)
            out[k * width + j] = np.log(_add_powers(segment, shift)) + shift


@compiled
def _raise(out: Any, v: Any, total: Any, share: Any) -> None:
    for i in range(out.size):
        out[i] = exponential(v[i] - total) * share


@compiled
def _raise_row(out: Any, v: Any, totals: Any, shares: Any) -> None:
    for j in range(out.size):
        out[j] = exponential(v[j] - totals[j]) * shares[j]


@compiled
def _backward(
    v: Any, g: Any, total: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:  # fmt: skip
    """What does not lie together is brought together first, and put back."""
    together = np.empty(0 if width > 1 or not has_order else _longest(pointers, lo, hi), v.dtype)
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width > 1:
            shares, totals = g[k * width : (k + 1) * width], total[k * width : (k + 1) * width]
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width
                _raise_row(out[at : at + width], v[at : at + width], totals, shares)
        elif has_order:
            segment, places = together[: stop - start], order[start:stop]
            _gather(v, places, 1, 0, segment)
            _raise(segment, segment, total[k], g[k])
            for i in range(places.size):
                out[places[i]] = segment[i]
        else:
            _raise(out[start:stop], v[start:stop], total[k], g[k])
