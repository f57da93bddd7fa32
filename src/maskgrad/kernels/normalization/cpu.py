r"""Standardizing the specified entries of each row: values and mask are read from memory once.

.. math:: y_i = (x_i - \bar x) s w_i + b_i, \qquad s = (Q / n + \varepsilon)^{-1/2}, \qquad
          Q = \sum_{i: m_i} (x_i - \bar x)^2

A row is read three times, for its mean, its squares, and its result, but stays in the cache. Sums of a block
are those of the type of the values (half precision in float32), sums of blocks are float64. In the backward pass the
gradients of weight and bias are added over at most ``ROWS`` rows, and these sums over all, so that no thread writes
what is another's.

Legend: v values, m mask, g gradient; w weight, b bias; s scale; n number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import normalization as family
from maskgrad.kernels.cpu.compiler import array, compiled, decode, reordered
from maskgrad.kernels.cpu.floating import encode
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run

BLOCK = 1024  # entries of a row added in their own type
ROWS = 64  # rows whose gradients of weight and bias are added together
MIN_TASKS = 32


def masked_layer_norm(
    values: Tensor,
    mask: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not values.numel() or not dims:
        return family.masked_layer_norm.reference(values, mask, dims, weight, bias, eps, centered)
    shape, wide = values.shape, _wide(values)
    values, mask, rows, length = _rows_of(values, mask, dims)
    out = empty((rows, length), values.dtype)
    mean, scale, count = (empty(rows, dtype) for dtype in (wide, wide, torch.int64))
    zero = np.zeros((), _NUMPY[wide])[()]
    run(
        _forward, array(values), array(mask), _parameter(weight, length, wide, 1), _parameter(bias, length, wide, 0),
        mask.stride(1) if length > 1 else 1, float(eps), centered, zero, zero + zero.dtype.type(1), array(out),
        mean.numpy(), scale.numpy(), count.numpy(), tasks=rows, elements=values.numel(),
    )  # fmt: skip
    kept = (*shape[: len(shape) - dims], *(1,) * dims)
    return out.view(shape), mean.view(kept), scale.view(kept), count.view(kept)


def masked_layer_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dims: int,
    weight: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if not values.numel() or not dims:
        return family.masked_layer_norm_backward.reference(
            grad, values, mask, mean, scale, count, dims, weight, eps, centered
        )
    shape, wide = values.shape, _wide(values)
    values, mask, rows, length = _rows_of(values, mask, dims)
    grad = grad.detach().to(values.dtype).reshape(rows, length).contiguous()
    out = empty((rows, length), values.dtype)
    piece = min(ROWS, max(1, rows // MIN_TASKS))
    pieces = -(-rows // piece)
    of_weight, of_bias = empty((pieces, length), wide), empty((pieces, length), wide)
    zero = np.zeros((), _NUMPY[wide])[()]
    statistics = (x.detach().reshape(-1).contiguous() for x in (mean, scale, count))
    run(
        _backward, array(grad), array(values), array(mask), _parameter(weight, length, wide, 1),
        mask.stride(1) if length > 1 else 1, *(array(x) for x in statistics), piece, centered, zero, array(out),
        of_weight.numpy(), of_bias.numpy(), tasks=pieces, elements=values.numel(),
    )  # fmt: skip
    row = shape[len(shape) - dims :]
    of_weight, of_bias = (x.sum(0, dtype=torch.float64).to(wide).view(row) for x in (of_weight, of_bias))
    return out.view(shape), of_weight, of_bias


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _wide(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _rows_of(values: Tensor, mask: Tensor, dims: int) -> tuple[Tensor, Tensor, int, int]:
    """Return values and mask as matrices; a mask that is constant along the rows, or over them, is not expanded."""
    length = math.prod(values.shape[-dims:])
    values = values.detach().reshape(-1, length).contiguous()
    mask = mask.reshape(-1, length)
    return values, mask if mask.stride(1) <= 1 else mask.contiguous(), values.shape[0], length


def _parameter(x: Tensor | None, length: int, dtype: torch.dtype, constant: float) -> Any:
    """A weight or bias as a vector."""
    x = torch.full((length,), constant, dtype=dtype) if x is None else x.detach().to(dtype)
    return array(x.reshape(-1).contiguous())


@reordered
def _sum_block(v: Any, m: Any, zero: Any, one: Any) -> Any:
    s, n = zero, zero
    for k in range(v.size):
        specified = m[k] != 0
        s += decode(v[k]) if specified else zero
        n += one if specified else zero
    return s, n


@reordered
def _square_block(v: Any, m: Any, c: Any, zero: Any) -> Any:
    s, q = zero, zero
    for k in range(v.size):
        d = decode(v[k]) - c if m[k] != 0 else zero
        s += d
        q += d * d
    return s, q


@compiled
def _apply(v: Any, m: Any, w: Any, b: Any, c: Any, s: Any, zero: Any, out: Any) -> None:
    for k in range(v.size):
        y = (decode(v[k]) - c) * s * w[k] + b[k]
        out[k] = encode(y if m[k] != 0 else zero, v[k])


@compiled
def _forward(
    v_all: Any, m_all: Any, w: Any, b: Any, m_step: int, eps: float, centered: bool, zero: Any, one: Any, out: Any,
    mean: Any, scale: Any, count: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t standardizes row t."""
    length = w.size
    complete = np.ones(length, np.uint8)
    cast = np.full(2, zero)  # values of the type of the statistics
    for row in range(lo, hi):
        v = v_all[row]
        if m_step == 0 and m_all[row, 0] == 0:
            out[row, :] = encode(zero, v[0])
            mean[row], scale[row], count[row] = zero, one, 0
            continue
        m = m_all[row] if m_step else complete
        total, number = 0.0, 0
        for k in range(0, length, BLOCK):
            block_s, block_n = _sum_block(v[k : k + BLOCK], m[k : k + BLOCK], zero, one)
            total += block_s
            number += int(block_n)
        middle = total / max(number, 1) if centered else 0.0
        cast[0] = middle
        shift, rest, squares = cast[0], 0.0, 0.0
        for k in range(0, length, BLOCK):
            block_s, block_q = _square_block(v[k : k + BLOCK], m[k : k + BLOCK], shift, zero)
            rest += block_s
            squares += block_q
        if centered and number and rest == rest:  # the center was rounded, unless it is infinite
            squares -= rest * rest / number
            cast[0] = shift + rest / number
        if number:
            cast[1] = 1 / np.sqrt(squares / number + eps)
        else:
            cast[1] = 1
        mean[row], scale[row], count[row] = cast[0], cast[1], number
        _apply(v, m, w, b, cast[0], cast[1], zero, out[row])


@reordered
def _gradient_block(g: Any, v: Any, m: Any, w: Any, c: Any, zero: Any) -> Any:
    a, b = zero, zero
    for k in range(v.size):
        specified = m[k] != 0
        h = decode(g[k]) * w[k] if specified else zero
        d = decode(v[k]) - c if specified else zero
        a += h
        b += h * d
    return a, b


@compiled
def _gradient_row(
    g: Any, v: Any, m: Any, w: Any, c: Any, s: Any, slope: Any, offset: Any, zero: Any, of_weight: Any, of_bias: Any,
    out: Any,
) -> None:  # fmt: skip
    for k in range(v.size):
        specified = m[k] != 0
        x, y = decode(v[k]) - c, decode(g[k])
        # Select products, not factors: the scale may be NaN.
        product = y * (x * s)
        of_weight[k] += product if specified else zero
        of_bias[k] += y if specified else zero
        r = y * w[k] * s - x * slope - offset
        out[k] = encode(r if specified else zero, v[k])


@compiled
def _backward(
    g_all: Any, v_all: Any, m_all: Any, w: Any, m_step: int, mean: Any, scale: Any, count: Any, piece: int,
    centered: bool, zero: Any, out: Any, of_weight: Any, of_bias: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t computes the gradients of rows t * piece to (t + 1) * piece, and their sums for the parameters."""
    length = w.size
    complete = np.ones(length, np.uint8)
    cast = np.full(2, zero)
    for task in range(lo, hi):
        of_weight[task, :] = zero
        of_bias[task, :] = zero
        for row in range(task * piece, min((task + 1) * piece, v_all.shape[0])):
            g, v = g_all[row], v_all[row]
            if m_step == 0 and m_all[row, 0] == 0:
                out[row, :] = encode(zero, v[0])
                continue
            m = m_all[row] if m_step else complete
            a, b = 0.0, 0.0
            for k in range(0, length, BLOCK):
                stop = k + BLOCK
                block_a, block_b = _gradient_block(
                    g[k:stop], v[k:stop], m[k:stop], w[k:stop], mean[row], zero
                )
                a += block_a
                b += block_b
            s, number = float(scale[row]), max(count[row], 1)
            cast[0] = s * s * s * b / number
            cast[1] = s * a / number if centered else 0.0
            _gradient_row(
                g,
                v,
                m,
                w,
                mean[row],
                scale[row],
                cast[0],
                cast[1],
                zero,
                of_weight[task],
                of_bias[task],
                out[row],
            )
