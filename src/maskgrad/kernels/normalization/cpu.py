r"""Standardizing the specified entries of each row: values and mask are read from memory once.

.. math:: y_i = (x_i - \bar x) s w_i + b_i, \qquad s = (Q / n + \varepsilon)^{-1/2}, \qquad
          Q = \sum_{i: m_i} (x_i - \bar x)^2

A row is read three times, for its mean, its squares, and its result, but stays in the cache. Sums of a block
are those of the type of the values (half precision in float32), sums of blocks are float64. In the backward pass the
gradients of weight and bias are added over at most ``ROWS`` rows, and these sums over all, in float64; where several
threads are worth it, in pieces, so that no thread writes what is another's.

Legend: v values, m mask, g gradient; w weight, b bias; s scale; n number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import normalization as family
from maskgrad.kernels.cpu.compiler import at, compiled, decode, flat, reordered
from maskgrad.kernels.cpu.floating import encode
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import SERIAL, run

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
    kept = (*shape[: len(shape) - dims], *(1,) * dims)
    out, mean, scale = empty(shape, values.dtype), empty(kept, wide), empty(kept, wide)
    count, zero = empty(kept, torch.int64), np.zeros((), _NUMPY[wide])[()]
    parameters = [_parameter(values, p, wide) for p in (weight, bias)]
    run(
        _forward, flat(values), flat(mask), *[flat(p) for p in parameters], weight is not None, bias is not None,
        length, mask.stride(0), mask.stride(1) if length > 1 else 1, float(eps), centered, zero,
        zero + zero.dtype.type(1), flat(out), flat(mean), flat(scale), flat(count), tasks=rows,
        elements=values.numel(),
    )  # fmt: skip
    return out, mean, scale, count


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
    serial = values.numel() < SERIAL  # one thread: nothing is left to add up
    piece = rows if serial else min(ROWS, max(1, rows // MIN_TASKS))
    pieces, row = -(-rows // piece), shape[len(shape) - dims :]
    out, one = empty(shape, values.dtype), np.ones((), _NUMPY[wide])[()]
    sums = [empty(row if serial else (pieces, length), wide) for _ in range(2)]
    factors = _parameter(values, weight, wide)
    statistics = [x.detach().reshape(-1).contiguous() for x in (mean, scale, count)]
    run(
        _backward, flat(grad), flat(values), flat(mask), flat(factors), weight is not None,
        rows, length, mask.stride(0), mask.stride(1) if length > 1 else 1, *[flat(x) for x in statistics], piece,
        centered, one - one, one, flat(out), *[flat(x) for x in sums], tasks=pieces, elements=values.numel(),
    )  # fmt: skip
    if not serial:
        sums = [x.sum(0, dtype=torch.float64).to(wide).view(row) for x in sums]
    return out, sums[0], sums[1]


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _wide(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _rows_of(values: Tensor, mask: Tensor, dims: int) -> tuple[Tensor, Tensor, int, int]:
    """Return values and mask as matrices; a mask that is constant along the rows, or over them, is not expanded."""
    length = math.prod(values.shape[-dims:])
    values = values.detach().reshape(-1, length).contiguous()
    mask = mask.reshape(-1, length)
    return values, mask if mask.stride(1) <= 1 else mask.contiguous(), values.shape[0], length


def _parameter(values: Tensor, parameter: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A weight or bias as a vector; if there is none the values, of which nothing is used."""
    if parameter is None:
        return values
    if parameter.numel() != values.shape[1]:
        raise ValueError(
            f"weight and bias must have {values.shape[1]} entries, as many as a row, found {parameter.numel()}"
        )
    return parameter.detach().to(dtype).reshape(-1).contiguous()


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
def _apply(
    v: Any, m: Any, w: Any, b: Any, has_weight: bool, has_bias: bool, c: Any, s: Any, zero: Any, one: Any, out: Any
) -> None:  # fmt: skip
    for k in range(v.size):
        y = (decode(v[k]) - c) * s
        y = y * (decode(w[k]) if has_weight else one) + (decode(b[k]) if has_bias else zero)
        out[k] = encode(y if m[k] != 0 else zero, v[k])


@compiled
def _forward(
    v_all: Any, m_all: Any, w: Any, b: Any, has_weight: bool, has_bias: bool, length: int, m_row: int, m_step: int,
    eps: float, centered: bool, zero: Any, one: Any, out: Any, mean: Any, scale: Any, count: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t standardizes row t."""
    v_all, m_all, w, b, out = at(v_all), at(m_all), at(w), at(b), at(out)
    mean, scale, count = at(mean), at(scale), at(count)
    complete = np.ones(0 if m_step else length, np.uint8)
    cast = np.full(2, zero)  # values of the type of the statistics
    for row in range(lo, hi):
        start = row * length
        v, found = v_all[start : start + length], out[start : start + length]
        if m_step == 0 and m_all[row * m_row] == 0:
            found[:] = encode(zero, v[0])
            mean[row], scale[row], count[row] = zero, one, 0
            continue
        m = m_all[row * m_row : row * m_row + length] if m_step else complete
        total, number = 0.0, 0
        for k in range(0, length, BLOCK):
            stop = min(k + BLOCK, length)
            block_s, block_n = _sum_block(v[k:stop], m[k:stop], zero, one)
            total += block_s
            number += int(block_n)
        middle = total / max(number, 1) if centered else 0.0
        cast[0] = middle
        shift, rest, squares = cast[0], 0.0, 0.0
        for k in range(0, length, BLOCK):
            stop = min(k + BLOCK, length)
            block_s, block_q = _square_block(v[k:stop], m[k:stop], shift, zero)
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
        _apply(v, m, w[:length], b[:length], has_weight, has_bias, cast[0], cast[1], zero, one, found)


@reordered
def _gradient_block(g: Any, v: Any, m: Any, w: Any, has_weight: bool, c: Any, zero: Any, one: Any) -> Any:
    a, b = zero, zero
    for k in range(v.size):
        specified = m[k] != 0
        h = decode(g[k]) * (decode(w[k]) if has_weight else one) if specified else zero
        d = decode(v[k]) - c if specified else zero
        a += h
        b += h * d
    return a, b


@compiled
def _gradient_row(
    g: Any, v: Any, m: Any, w: Any, has_weight: bool, c: Any, s: Any, slope: Any, offset: Any, zero: Any, one: Any,
    of_weight: Any, of_bias: Any, out: Any,
) -> None:  # fmt: skip
    for k in range(v.size):
        specified = m[k] != 0
        x, y = decode(v[k]) - c, decode(g[k])
        # Select products, not factors: the scale may be NaN.
        product = y * (x * s)
        of_weight[k] += product if specified else zero
        of_bias[k] += y if specified else zero
        r = y * (decode(w[k]) if has_weight else one) * s - x * slope - offset
        out[k] = encode(r if specified else zero, v[k])


@compiled
def _backward(
    g_all: Any, v_all: Any, m_all: Any, w_all: Any, has_weight: bool, rows: int, length: int, m_row: int, m_step: int,
    mean: Any, scale: Any, count: Any, piece: int, centered: bool, zero: Any, one: Any, out: Any, of_weight: Any,
    of_bias: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t computes the gradients of rows t * piece to (t + 1) * piece, and their sums for the parameters."""
    g_all, v_all, m_all, w_all, out = at(g_all), at(v_all), at(m_all), at(w_all), at(out)
    mean, scale, count, of_weight, of_bias = at(mean), at(scale), at(count), at(of_weight), at(of_bias)
    complete = np.ones(0 if m_step else length, np.uint8)
    cast = np.full(2, zero)
    w = w_all[:length]
    for task in range(lo, hi):
        sums, parts = np.zeros((2, length)), np.full((2, length), zero)
        begin, end = task * piece, min((task + 1) * piece, rows)
        for row in range(begin, end):
            start = row * length
            g, v, found = (
                g_all[start : start + length],
                v_all[start : start + length],
                out[start : start + length],
            )
            if m_step == 0 and m_all[row * m_row] == 0:
                found[:] = encode(zero, v[0])
            else:
                m = m_all[row * m_row : row * m_row + length] if m_step else complete
                a, b = 0.0, 0.0
                for k in range(0, length, BLOCK):
                    stop = min(k + BLOCK, length)
                    block_a, block_b = _gradient_block(
                        g[k:stop], v[k:stop], m[k:stop], w[k:stop], has_weight, mean[row], zero, one
                    )
                    a += block_a
                    b += block_b
                s, number = float(scale[row]), max(count[row], 1)
                cast[0] = s * s * s * b / number
                cast[1] = s * a / number if centered else 0.0
                _gradient_row(
                    g, v, m, w, has_weight, mean[row], scale[row], cast[0], cast[1], zero, one, parts[0], parts[1],
                    found,
                )  # fmt: skip
            if (row - begin) % ROWS == ROWS - 1 or row == end - 1:
                for k in range(length):
                    sums[0, k] += parts[0, k]
                    sums[1, k] += parts[1, k]
                    parts[0, k] = parts[1, k] = zero
        for k in range(length):
            of_weight[task * length + k], of_bias[task * length + k] = sums[0, k], sums[1, k]
