r"""Vector norm of each segment of a list of entries: each segment is read where it lies.

.. math:: \lVert x \rVert_{p, k} = \Bigl(\sum_{i \in k} |x_i|^p\Bigr)^{1/p}, \qquad
          \frac{\partial \lVert x \rVert_{p, k}}{\partial x_i}
          = \operatorname{sgn} x_i \, |x_i|^{p - 1} \, \lVert x \rVert_{p, k}^{1 - p}

Sums are added in float64; halves are converted to float32 before. The powers of orders other than 0, 1, 2, inf and -inf
are PyTorch's own. An extreme size is found among integers that have the order of the numbers: NaN wins, and the loop
is vector code. One task is one segment.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import compiled, reordered
from maskgrad.kernels.cpu.floating import ordered, restored
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.norms import segments as family
from maskgrad.kernels.segments.cpu import bounds, entries, segment_expand

SHORT = 32  # entries of a segment that a plain loop is done with before a slice is made
_ZERO, _ONE, _TWO, _POWER = range(4)


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None, ord: float) -> Tensor:
    values = values.detach()
    if not values.numel():
        return family.segment_norm.reference(values, pointers, order, ord)
    v = values.float() if values.dtype in HALVES else values
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    shape, where = (rows, *values.shape[1:]), bounds(pointers, order)
    loop: Any
    extra: tuple[Any, ...]
    if math.isinf(ord):
        out = empty(shape, v.dtype)
        loop, extra = _extremes, (width, 0 if ord > 0 else -1)
    else:
        out = empty(shape, torch.float64)
        kind = int(ord) if ord in (0, 1, 2) else _POWER
        if kind == _POWER:
            v, kind = v.abs().pow_(ord), _ONE
        loop, extra = (_sums, (kind,)) if width == 1 else (_vector_sums, (width, kind))
    run(loop, entries(v), *where, *extra, out.view(-1).numpy(), tasks=rows, elements=values.numel())
    if ord not in (0, 1, math.inf, -math.inf):
        out = out.sqrt_() if ord == 2 else out.pow_(1 / ord)
        if ord < 0:  # the sum of nothing is 0, and 0 ** (1 / ord) inf
            out.masked_fill_((pointers.diff() == 0).view(-1, *(1,) * (out.ndim - 1)), 0)
    return out.to(torch.promote_types(values.dtype, torch.float32))


def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    if ord == 0 or not values.numel():
        return torch.zeros_like(values)
    values, norm, share = values.detach(), norm.detach(), grad.detach().double()
    v, width = values.float() if values.dtype in HALVES else values, math.prod(values.shape[1:])
    where, tasks = bounds(pointers, order), len(pointers) - 1
    if math.isinf(ord):
        out = empty(values.shape, v.dtype)
        run(
            _attained, entries(v), entries(norm.to(v.dtype)), entries(share), *where, width, out.view(-1).numpy(),
            tasks=tasks, elements=2 * out.numel(),
        )  # fmt: skip
        return out.to(values.dtype)
    kind = int(ord) if ord in (1, 2) else _POWER
    if kind != _ONE:
        share = torch.where(norm == 0, 0, share * norm.double().pow(1 - ord))
    powers = v.abs().pow_(ord - 1) if kind == _POWER else v
    if order is not None:  # places far apart are what costs: they are written to, and not read before
        out = segment_expand(share.to(v.dtype), pointers, order, len(values))
        if kind == _POWER:
            out.mul_(powers.masked_fill_(v == 0, 0))
        return out.mul_(v if kind == _TWO else v.sgn()).to(values.dtype)
    out = empty(values.shape, v.dtype)
    run(
        _scaled, entries(v), entries(powers), entries(share), where[0], width, kind, out.view(-1).numpy(),
        tasks=tasks, elements=2 * out.numel(),
    )  # fmt: skip
    return out.to(values.dtype)


@reordered
def _add(v: Any, kind: int) -> float:
    s = 0.0
    if kind == _TWO:
        for i in range(v.size):
            x = np.float64(v[i])
            s += x * x
    elif kind == _ONE:
        for i in range(v.size):
            s += abs(v[i])
    else:
        for i in range(v.size):
            s += 1.0 if v[i] != 0 else 0.0
    return s


@compiled
def _term(x: Any, kind: int) -> Any:
    x = np.float64(x)
    if kind == _TWO:
        return x * x
    if kind == _ONE:
        return abs(x)
    return 1.0 if x != 0 else 0.0


@compiled
def _sums(v: Any, pointers: Any, order: Any, has_order: bool, kind: int, out: Any, lo: int, hi: int) -> None:
    """Of entries that are single numbers."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if stop - start >= SHORT and not has_order:
            out[k] = _add(v[start:stop], kind)
            continue
        s = 0.0
        for i in range(start, stop):
            s += _term(v[order[i] if has_order else i], kind)
        out[k] = s


@compiled
def _vector_sums(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, kind: int, out: Any, lo: int, hi: int
) -> None:
    """Of entries that are vectors (hybrid layouts): column by column of a row, row by row."""
    for k in range(lo, hi):
        s = out[k * width : (k + 1) * width]
        s[:] = 0
        for i in range(pointers[k], pointers[k + 1]):
            at = (order[i] if has_order else i) * width
            row = v[at : at + width]
            for j in range(width):
                s[j] += _term(row[j], kind)


@compiled
def _extreme(v: Any, turn: int) -> Any:
    best = ordered(abs(v[0]), turn)
    for i in range(v.size):
        key = ordered(abs(v[i]), turn)
        best = key if key > best else best
    return best


@compiled
def _extremes(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, turn: int, out: Any, lo: int, hi: int
) -> None:
    """The largest size, or, with a ``turn`` of -1, the smallest; 0 of nothing."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        for j in range(width):
            if start == stop:
                out[k * width + j] = 0
                continue
            if width == 1 and not has_order:
                best = _extreme(v[start:stop], turn)
            else:
                best = ordered(abs(v[(order[start] if has_order else start) * width + j]), turn)
                for i in range(start, stop):
                    key = ordered(abs(v[(order[i] if has_order else i) * width + j]), turn)
                    best = key if key > best else best
            out[k * width + j] = restored(best, turn, out[0])


# Signs are numbers, not branches: half of these would be mispredicted.


@compiled
def _scale(out: Any, v: Any, powers: Any, share: float, kind: int) -> None:
    if kind == _TWO:
        for i in range(out.size):
            out[i] = v[i] * share
    elif kind == _ONE:
        for i in range(out.size):
            out[i] = share * ((v[i] > 0) - np.float64(v[i] < 0))
    else:
        for i in range(out.size):
            x = v[i]
            out[i] = (share if x == 0 else share * powers[i]) * ((x > 0) - np.float64(x < 0))


@compiled
def _scale_row(out: Any, v: Any, powers: Any, shares: Any, kind: int) -> None:
    for j in range(out.size):
        x = v[j]
        if kind == _TWO:
            out[j] = x * shares[j]
        else:
            power = np.float64(powers[j]) if (kind == _POWER) & (x != 0) else 1.0
            out[j] = shares[j] * power * ((x > 0) - np.float64(x < 0))


@compiled
def _scaled(
    v: Any, powers: Any, share: Any, pointers: Any, width: int, kind: int, out: Any, lo: int, hi: int
) -> None:
    """The entry (2), its sign (1), or its sign times its power, times what its segment has."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1:
            _scale(out[start:stop], v[start:stop], powers[start:stop], share[k], kind)
            continue
        shares = share[k * width : (k + 1) * width]
        for at in range(start * width, stop * width, width):
            _scale_row(out[at : at + width], v[at : at + width], powers[at : at + width], shares, kind)


@compiled
def _attain(out: Any, v: Any, best: Any, share: float) -> None:
    ties = 0
    for i in range(v.size):
        size = abs(v[i])
        ties += (size == best) | ((size != size) & (best != best))
    s = share / max(ties, 1)
    for i in range(v.size):
        x = v[i]
        hit = (abs(x) == best) | ((x != x) & (best != best))
        out[i] = s * ((x > 0) - np.float64(x < 0)) if hit else 0.0


@compiled
def _attain_places(out: Any, v: Any, places: Any, best: Any, share: float) -> None:
    ties = 0
    for at in places:
        size = abs(v[at])
        ties += (size == best) | ((size != size) & (best != best))
    s = share / max(ties, 1)
    for at in places:
        x = v[at]
        hit = (abs(x) == best) | ((x != x) & (best != best))
        out[at] = s * ((x > 0) - np.float64(x < 0)) if hit else 0.0


@compiled
def _attained(
    v: Any, norm: Any, share: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:  # fmt: skip
    """The sign of an entry of the extreme size, or of a NaN where that is NaN, times the part it has in it."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1 and not has_order:
            _attain(out[start:stop], v[start:stop], norm[k], share[k])
            continue
        if width == 1:
            _attain_places(out, v, order[start:stop], norm[k], share[k])
            continue
        for j in range(width):
            best, ties = norm[k * width + j], 0
            for i in range(start, stop):
                size = abs(v[(order[i] if has_order else i) * width + j])
                ties += (size == best) | ((size != size) & (best != best))
            s = share[k * width + j] / max(ties, 1)
            for i in range(start, stop):
                at = (order[i] if has_order else i) * width + j
                x = v[at]
                hit = (abs(x) == best) | ((x != x) & (best != best))
                out[at] = s * ((x > 0) - np.float64(x < 0)) if hit else 0.0
