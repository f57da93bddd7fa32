r"""Reductions and softmax over segments of stored entries: each segment is read where it lies.

.. math:: s_k = \sum_{i \in k} x_i, \qquad y_i = \frac{e^{x_i}}{\sum_{j \in k(i)} e^{x_j}}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_{j \in k(i)} y_j \bar y_j\Bigr)

Nothing is sorted or searched: the caller knows the segments (``pointers``, and ``order`` where the entries of one do
not lie together). One task is one segment, added in float64 (integers in int64). The exponentials of the
softmax are PyTorch's own, so that they round as everywhere else; two loops before and after shift and divide.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, compiled, decode, reordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.sorting import fits, runs
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.reference import segments as reference
from maskgrad.kernels.reference.reductions import HALVES

_NO_ORDER = np.empty(0, np.int64)


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """As in the reference, by a radix sort."""
    if not fits(indices.shape[0], num_rows):
        return reference.sort_rows(indices, num_rows)
    found = runs(indices, num_rows)
    order = torch.empty(indices.shape[0], dtype=torch.int64)
    _places(found.keys, found.places, order.numpy())
    return torch.from_numpy(found.starts)[: found.rows.shape[0] + 1].clone(), order, found.rows


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """As in the reference."""
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    exact = values.dtype == dtype or (values.is_floating_point() and dtype in (torch.float32, torch.float64))
    if not values.numel() or not exact:
        return reference.segment_sum(values, pointers, order, dtype)
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), dtype)
    wide = np.float64(0) if values.is_floating_point() else np.int64(0)
    run(
        _sum, _flat(values), *_segments(pointers, order), width, wide, out.view(-1).numpy(),
        tasks=rows, elements=values.numel(),
    )  # fmt: skip
    return out


def segment_spread(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """As in the reference."""
    out = empty((number, *values.shape[1:]), values.dtype)
    if out.numel():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]  # only moved
        run(
            _spread, _flat(values.detach().view(bits)), *_segments(pointers, order), math.prod(values.shape[1:]),
            out.view(bits).view(-1).numpy(), tasks=pointers.shape[0] - 1, elements=out.numel(),
        )  # fmt: skip
    return out


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """As in the reference."""
    if not values.numel():
        return reference.segment_extremum(values, pointers, order, largest)
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), torch.float32 if values.dtype in HALVES else values.dtype)
    run(
        _extremum, _flat(values), *_segments(pointers, order), width, largest, out.view(-1).numpy(),
        tasks=rows, elements=values.numel(),
    )  # fmt: skip
    return out.to(values.dtype)


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    """As in the reference."""
    if not _scalar_floats(values):
        return reference.segment_softmax(values, pointers, order, logarithm)
    where, size = _segments(pointers, order), values.shape[0]
    out = empty(size, torch.float32 if values.dtype in HALVES else values.dtype)
    run(_shift, _flat(values), *where, out.numpy(), tasks=len(pointers) - 1, elements=size)
    powers = torch.exp(out, out=empty(size, out.dtype) if logarithm else out)
    run(_normalise, powers.numpy(), *where, logarithm, out.numpy(), tasks=len(pointers) - 1, elements=size)
    return out.to(values.dtype)


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    """As in the reference."""
    if not _scalar_floats(output) or grad.dtype != output.dtype:
        return reference.segment_softmax_backward(grad, output, pointers, order, logarithm)
    wide = torch.float32 if output.dtype in HALVES else output.dtype
    soft, out = output.detach().to(wide), empty(output.shape[0], wide)
    run(
        _softmax_backward, _flat(grad), _flat(soft.exp() if logarithm else soft), *_segments(pointers, order),
        logarithm, out.numpy(), tasks=len(pointers) - 1, elements=2 * len(out),
    )  # fmt: skip
    return out.to(output.dtype)


def _scalar_floats(values: Tensor) -> bool:
    """Entries that are single numbers; vectors (hybrid layouts) and nothing at all are left to the reference."""
    return values.ndim == 1 and values.numel() > 0 and values.is_floating_point()


def _flat(x: Tensor) -> Any:
    return array(x.detach().contiguous().view(-1))


def _segments(pointers: Tensor, order: Tensor | None) -> tuple[Any, Any, bool]:
    """Arrays of one type in every case, so that one version is compiled."""
    has_order = order is not None
    return _flat(pointers.long()), (_flat(order) if order is not None else _NO_ORDER), has_order


@compiled
def _places(keys: Any, places: Any, order: Any) -> None:
    for i in range(keys.size):
        order[i] = keys[i] & places


@reordered
def _add(v: Any, wide: Any) -> Any:
    s = wide
    for i in range(v.size):
        s += decode(v[i])
    return s


@compiled
def _sum(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, wide: Any, out: Any, lo: int, hi: int
) -> None:
    if width == 1:
        for k in range(lo, hi):
            if has_order:
                s = wide
                for i in range(pointers[k], pointers[k + 1]):
                    s += decode(v[order[i]])
                out[k] = s
            else:
                out[k] = _add(v[pointers[k] : pointers[k + 1]], wide)
        return
    acc = np.full(width, wide)
    for k in range(lo, hi):
        acc[:] = wide
        for i in range(pointers[k], pointers[k + 1]):
            at = (order[i] if has_order else i) * width
            a = v[at : at + width]
            for j in range(width):
                acc[j] += decode(a[j])
        result = out[k * width : (k + 1) * width]
        for j in range(width):
            result[j] = acc[j]


@compiled
def _spread(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:
    for k in range(lo, hi):
        if width == 1 and not has_order:
            out[pointers[k] : pointers[k + 1]] = v[k]
        elif width == 1:
            for i in range(pointers[k], pointers[k + 1]):
                out[order[i]] = v[k]
        else:
            for i in range(pointers[k], pointers[k + 1]):
                at = (order[i] if has_order else i) * width
                out[at : at + width] = v[k * width : (k + 1) * width]


@compiled
def _extremum(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, largest: bool, out: Any, lo: int, hi: int
) -> None:
    """NaN wins, as in torch.amax."""
    if width == 1:
        for k in range(lo, hi):
            start = pointers[k]
            best = decode(v[order[start] if has_order else start])
            for i in range(start + 1, pointers[k + 1]):
                value = decode(v[order[i] if has_order else i])
                if value != value or (value > best if largest else value < best):
                    best = value
            out[k] = best
        return
    for k in range(lo, hi):
        result = out[k * width : (k + 1) * width]
        for i in range(pointers[k], pointers[k + 1]):
            at = (order[i] if has_order else i) * width
            a = v[at : at + width]
            for j in range(width):
                value = decode(a[j])
                if (
                    i == pointers[k]
                    or value != value
                    or (value > result[j] if largest else value < result[j])
                ):
                    result[j] = value


@compiled
def _shift(v: Any, pointers: Any, order: Any, has_order: bool, out: Any, lo: int, hi: int) -> None:
    """Entries less the largest of their segment; a NaN need not win here, it remains NaN and spoils the sum."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if has_order:
            best = decode(v[order[start]])
            for i in range(start + 1, stop):
                value = decode(v[order[i]])
                best = value if value > best else best
            for i in range(start, stop):
                out[order[i]] = decode(v[order[i]]) - best
        else:
            a, result = v[start:stop], out[start:stop]
            best = decode(a[0])
            for i in range(1, a.size):
                value = decode(a[i])
                best = value if value > best else best
            for i in range(a.size):
                result[i] = decode(a[i]) - best


@compiled
def _normalise(
    powers: Any, pointers: Any, order: Any, has_order: bool, logarithm: bool, out: Any, lo: int, hi: int
) -> None:
    """Divide the powers by the sum of their segment, or take its logarithm off the shifted entries in ``out``."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if has_order:
            s = 0.0
            for i in range(start, stop):
                s += powers[order[i]]
        else:
            s = _add(powers[start:stop], 0.0)
        share = out.dtype.type(np.log(s) if logarithm else s)
        for i in range(start, stop):
            at = order[i] if has_order else i
            if logarithm:
                out[at] -= share
            else:
                out[at] = powers[at] / share


@compiled
def _softmax_backward(
    g: Any, soft: Any, pointers: Any, order: Any, has_order: bool, logarithm: bool, out: Any, lo: int, hi: int
) -> None:
    for k in range(lo, hi):
        s = 0.0
        for i in range(pointers[k], pointers[k + 1]):
            at = order[i] if has_order else i
            s += decode(g[at]) if logarithm else np.float64(soft[at]) * decode(g[at])
        total = out.dtype.type(s)
        for i in range(pointers[k], pointers[k + 1]):
            at = order[i] if has_order else i
            if logarithm:
                out[at] = decode(g[at]) - soft[at] * total
            else:
                out[at] = soft[at] * (decode(g[at]) - total)
