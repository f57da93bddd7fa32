r"""Mean and variance of each segment of a list of entries: each segment is read where it lies, for a variance twice.

.. math:: \bar x_k = \frac{1}{n_k} \sum_{i \in k} x_i, \qquad
          v_k = \frac{\sum_{i \in k} (x_i - \bar x_k)^2}{\max(0, n_k - c)}, \qquad
          \frac{\partial v_k}{\partial x_i} = \frac{2 (x_i - \bar x_k)}{n_k - c}

Two passes, so that a large mean costs no digits; the second finds the segment in the cache. Everything is added in
float64; halves are converted to float32 before. One task is one segment.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, reordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cpu import bounds, entries
from maskgrad.kernels.variance import segments as family

SHORT = 32  # entries of a segment that a plain loop is done with before a slice is made


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    values = values.detach()
    if not values.numel():
        return family.segment_mean.reference(values, pointers, order)
    v = values.float() if values.dtype in HALVES else values
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), v.dtype)
    loop, rest = (_means, ()) if width == 1 else (_vector_means, (width,))
    run(
        loop, entries(v), *bounds(pointers, order), *rest, out.view(-1).numpy(), tasks=rows, elements=values.numel()
    )  # fmt: skip
    return out


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if not values.numel():
        return family.segment_variance.reference(values, pointers, order, correction)
    v = values.float() if values.dtype in HALVES else values
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    variance, mean = (empty((rows, *values.shape[1:]), d) for d in (v.dtype, torch.float64))
    loop, rest = (_scalars, ()) if width == 1 else (_vectors, (width,))
    run(
        loop, entries(v), *bounds(pointers, order), *rest, float(correction), variance.view(-1).numpy(),
        mean.view(-1).numpy(), tasks=rows, elements=values.numel(),
    )  # fmt: skip
    return variance, mean.float() if values.dtype in HALVES else mean


def segment_variance_backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach()
    v = values.float() if values.dtype in HALVES else values
    out = empty(values.shape, v.dtype)
    if out.numel():
        number = pointers.diff().double().view(-1, *(1,) * (grad.ndim - 1))
        enough = number > max(correction, 0)
        share = 2 * grad.detach() / torch.where(enough, number - correction, 1)
        run(
            _backward, entries(v), entries(share), entries(mean.double()), *bounds(pointers, order),
            math.prod(values.shape[1:]), out.view(-1).numpy(), tasks=len(pointers) - 1, elements=2 * out.numel(),
        )  # fmt: skip
        out = family.without_estimates_of_few(out, enough, pointers, order)
    return out.to(values.dtype)


@reordered
def _add(v: Any) -> float:
    s = 0.0
    for i in range(v.size):
        s += v[i]
    return s


@reordered
def _add_differences(v: Any, mean: float) -> float:
    s = 0.0
    for i in range(v.size):
        s += v[i] - mean
    return s


@reordered
def _add_squares(v: Any, mean: float) -> float:
    s = 0.0
    for i in range(v.size):
        d = v[i] - mean
        s += d * d
    return s


@compiled
def _means(v: Any, pointers: Any, order: Any, has_order: bool, out: Any, lo: int, hi: int) -> None:
    for k in range(lo, hi):
        start, stop, s = pointers[k], pointers[k + 1], 0.0
        if has_order:
            for i in range(start, stop):
                s += v[order[i]]
        elif stop - start < SHORT:
            for i in range(start, stop):
                s += v[i]
        else:
            s = _add(v[start:stop])
        out[k] = s / max(stop - start, 1)


@compiled
def _vector_means(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:
    s = np.empty(width)
    for k in range(lo, hi):
        start, stop, result = pointers[k], pointers[k + 1], out[k * width : (k + 1) * width]
        s[:] = 0
        for i in range(start, stop):
            at = (order[i] if has_order else i) * width
            row = v[at : at + width]
            for j in range(width):
                s[j] += row[j]
        for j in range(width):
            result[j] = s[j] / max(stop - start, 1)


@compiled
def _scalars(
    v: Any, pointers: Any, order: Any, has_order: bool, correction: float, variance: Any, mean: Any, lo: int, hi: int
) -> None:  # fmt: skip
    """Entries that are single numbers."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        n = stop - start
        s, q = 0.0, 0.0
        if n >= SHORT and not has_order:
            m = _add(v[start:stop]) / n
            if v.itemsize == 8:
                r = _add_differences(v[start:stop], m) / n
                m += r if math.isfinite(r) else 0.0
            q = _add_squares(v[start:stop], m)
        else:
            for i in range(start, stop):
                s += v[order[i] if has_order else i]
            m = s / max(n, 1)
            if v.itemsize == 8:  # of equal numbers the mean is then that number, and the variance 0
                r = 0.0
                for i in range(start, stop):
                    r += v[order[i] if has_order else i] - m
                r /= max(n, 1)
                m += r if math.isfinite(r) else 0.0
            for i in range(start, stop):
                d = v[order[i] if has_order else i] - m
                q += d * d
        mean[k] = m
        variance[k] = q / (n - correction) if n > max(correction, 0.0) else q


@compiled
def _vectors(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, correction: float, variance: Any, mean: Any,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Entries that are vectors (hybrid layouts): column by column of a row, row by row."""
    q, rest = np.empty(width), np.empty(width)
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        n = stop - start
        m, result = mean[k * width : (k + 1) * width], variance[k * width : (k + 1) * width]
        m[:], q[:] = 0, 0
        for i in range(start, stop):
            at = (order[i] if has_order else i) * width
            row = v[at : at + width]
            for j in range(width):
                m[j] += row[j]
        for j in range(width):
            m[j] /= max(n, 1)
        if v.itemsize == 8:
            rest[:] = 0
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width
                for j in range(width):
                    rest[j] += v[at + j] - m[j]
            for j in range(width):
                rest[j] /= max(n, 1)
                m[j] += rest[j] if math.isfinite(rest[j]) else 0.0
        for i in range(start, stop):
            at = (order[i] if has_order else i) * width
            row = v[at : at + width]
            for j in range(width):
                d = row[j] - m[j]
                q[j] += d * d
        for j in range(width):
            result[j] = q[j] / (n - correction) if n > max(correction, 0.0) else q[j]


@compiled
def _deviate(out: Any, v: Any, share: float, mean: float) -> None:
    for i in range(out.size):
        out[i] = share * (v[i] - mean)


@compiled
def _backward(
    v: Any, share: Any, mean: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:  # fmt: skip
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1 and not has_order:
            _deviate(out[start:stop], v[start:stop], share[k], mean[k])
        elif width == 1:
            s, m = share[k], mean[k]
            for at in order[start:stop]:
                out[at] = s * (v[at] - m)
        else:
            factors, means = share[k * width : (k + 1) * width], mean[k * width : (k + 1) * width]
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width
                result, row = out[at : at + width], v[at : at + width]
                for j in range(width):
                    result[j] = factors[j] * (row[j] - means[j])
