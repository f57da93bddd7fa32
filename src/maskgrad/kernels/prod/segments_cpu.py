r"""Product of each segment of a list of entries, and its gradient: each segment is read where it lies.

.. math:: P_k = \prod_{i \in k} x_i, \qquad \frac{\partial P_k}{\partial x_i} = \prod_{j \in k, j \ne i} x_j

Factors are multiplied in float64 (integers in int64), zeros apart; halves are converted to float32 before. ``dull`` is
the sum of 0 * x: NaN if a factor is inf or NaN, else 0, which is the product as soon as one factor is zero. It tells
such a product from one whose other factors overflow. One task is one segment.
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
from maskgrad.kernels.prod import segments as family
from maskgrad.kernels.segments.cpu import bounds, entries


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach()
    if not values.numel():
        return family.segment_prod.reference(values, pointers, order)
    exact = values.is_floating_point()
    dtype = torch.promote_types(values.dtype, torch.float32) if exact else torch.int64
    v, wide = values.to(dtype), torch.float64 if exact else torch.int64
    shape, width = (pointers.shape[0] - 1, *values.shape[1:]), math.prod(values.shape[1:])
    rest, dull, zeros = (empty(shape, d) for d in (wide, wide, torch.int64))
    one = np.float64(1) if exact else np.int64(1)
    run(
        _products, entries(v), *bounds(pointers, order), width, one, rest.view(-1).numpy(), dull.view(-1).numpy(),
        zeros.view(-1).numpy(), tasks=shape[0], elements=values.numel(),
    )  # fmt: skip
    product = torch.where(zeros > 0, dull, rest).to(dtype)
    return product, rest.float() if values.dtype in HALVES else rest, zeros


def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach()
    v = values.float() if values.dtype in HALVES else values
    out = empty(values.shape, v.dtype)
    if out.numel():
        share = rest.detach().double() * grad.detach()
        run(
            _backward, entries(v), entries(share), entries(zeros), *bounds(pointers, order),
            math.prod(values.shape[1:]), out.view(-1).numpy(), tasks=len(pointers) - 1, elements=2 * out.numel(),
        )  # fmt: skip
    return out.to(values.dtype)


@reordered
def _multiply(v: Any, one: Any) -> Any:
    p, dull, z = one, one * 0, 0
    for i in range(v.size):
        x = v[i]
        p *= x if x != 0 else one
        dull += x * 0
        z += x == 0
    return p, dull, z


@compiled
def _products(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, one: Any, rest: Any, dull: Any, zeros: Any,
    lo: int, hi: int,
) -> None:  # fmt: skip
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1 and not has_order:
            rest[k], dull[k], zeros[k] = _multiply(v[start:stop], one)
        elif width == 1:
            product, nothing, few = one, one * 0, 0
            for at in order[start:stop]:
                x = v[at]
                product *= x if x != 0 else one
                nothing += x * 0
                few += x == 0
            rest[k], dull[k], zeros[k] = product, nothing, few
        else:
            p, s = rest[k * width : (k + 1) * width], dull[k * width : (k + 1) * width]
            z = zeros[k * width : (k + 1) * width]
            p[:], s[:], z[:] = one, 0, 0
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width
                row = v[at : at + width]
                for j in range(width):
                    x = row[j]
                    p[j] *= x if x != 0 else one
                    s[j] += x * 0
                    z[j] += x == 0


@compiled
def _divide(out: Any, v: Any, share: float, zeros: int) -> None:
    if zeros == 0:
        for i in range(out.size):
            out[i] = share / v[i]
    else:
        for i in range(out.size):
            out[i] = share if (zeros == 1) & (v[i] == 0) else 0.0


@compiled
def _backward(
    v: Any, share: Any, zeros: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:  # fmt: skip
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1 and not has_order:
            _divide(out[start:stop], v[start:stop], share[k], zeros[k])
            continue
        if width == 1 and zeros[k] == 0:
            s = share[k]
            for at in order[start:stop]:
                out[at] = s / v[at]
            continue
        for i in range(start, stop):
            at = (order[i] if has_order else i) * width
            for j in range(width):
                x, s, z = v[at + j], share[k * width + j], zeros[k * width + j]
                if z == 0:
                    out[at + j] = s / x
                else:
                    out[at + j] = s if (z == 1) & (x == 0) else 0.0
