r"""Reductions and softmax over segments of stored entries: each segment is read in place.

Nothing is sorted or searched: the caller passes the segments (``pointers``, and ``order`` where the entries of one are
not contiguous). One task is one segment, added in float64 (integers in int64). The exponentials of the
softmax are PyTorch's own, for the same rounding as everywhere; two loops before and after shift and divide.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import segments as family
from maskgrad.kernels.cpu.compiler import compiled, decode, reordered
from maskgrad.kernels.cpu.floating import unordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.segments import SHORT, bounds, entries, extreme, extremes, itself, summed, summing
from maskgrad.kernels.cpu.sorting import fits, runs
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.kernel import HALVES


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """As in the reference, by a radix sort."""
    if not fits(indices.shape[0], num_rows):
        return family.sort_rows.reference(indices, num_rows)
    found = runs(indices, num_rows)
    order = torch.empty(indices.shape[0], dtype=torch.int64)
    _places(found.keys, found.places, order.numpy())
    return (
        torch.from_numpy(found.starts)[: found.rows.shape[0] + 1].clone(),
        order,
        torch.from_numpy(found.rows),
    )


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    exact = values.dtype == dtype or (values.is_floating_point() and dtype in (torch.float32, torch.float64))
    if not exact:
        return family.segment_sum.reference(values, pointers, order, dtype)
    return summed(SUM, values, pointers, order, dtype)


def segment_expand(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    out = empty((number, *values.shape[1:]), values.dtype)
    if out.numel():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]  # only moved
        run(
            _spread, entries(values.detach().view(bits)), *bounds(pointers, order), math.prod(values.shape[1:]),
            out.view(bits).view(-1).numpy(), tasks=pointers.shape[0] - 1, elements=2 * out.numel() // LIGHT,
        )  # fmt: skip
    return out


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    return extreme(_EXTREMES, values, pointers, order, largest).to(values.dtype)


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    if not _scalar_floats(values):
        return family.segment_softmax.reference(values, pointers, order, logarithm)
    where, size = bounds(pointers, order), values.shape[0]
    wide, tasks = torch.float32 if values.dtype in HALVES else values.dtype, len(pointers) - 1
    shifted = empty(size, wide)
    run(_shift, entries(values), *where, shifted.numpy(), tasks=tasks, elements=size)
    powers = torch.exp(shifted, out=empty(size, wide) if logarithm else shifted)
    out = shifted if order is None else empty(size, wide)  # in place where entries keep their order
    run(
        _normalise, shifted.numpy(), powers.numpy(), *where, logarithm, out.numpy(), tasks=tasks, elements=size
    )  # fmt: skip
    return out.to(values.dtype)


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    if not _scalar_floats(output) or grad.dtype != output.dtype:
        return family.segment_softmax_backward.reference(grad, output, pointers, order, logarithm)
    wide = torch.float32 if output.dtype in HALVES else output.dtype
    soft, out = output.detach().to(wide), empty(output.shape[0], wide)
    run(
        _softmax_backward, entries(grad), entries(soft.exp() if logarithm else soft), *bounds(pointers, order),
        logarithm, out.numpy(), tasks=len(pointers) - 1, elements=2 * len(out),
    )  # fmt: skip
    return out.to(output.dtype)


def _scalar_floats(values: Tensor) -> bool:
    """Return whether entries are scalars; vectors (hybrid layouts) and empty tensors are left to the reference."""
    return values.ndim == 1 and values.numel() > 0 and values.is_floating_point()


@compiled
def _places(keys: Any, places: Any, order: Any) -> None:
    for i in range(keys.size):
        order[i] = keys[i] & places


SUM = summing(itself)
best, _EXTREMES = extremes(itself)


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
        else:  # unsigned indices vectorise; slices took eight times as long
            first = np.uint64(k * width)
            for i in range(pointers[k], pointers[k + 1]):
                at = np.uint64((order[i] if has_order else i) * width)
                for u in range(np.uint64(width)):
                    out[at + u] = v[first + u]


@compiled
def _shift(v: Any, pointers: Any, order: Any, has_order: bool, shifted: Any, lo: int, hi: int) -> None:
    """Subtract from entries, segment by segment, the segment's maximum (ignoring NaN, which spoils the sum anyway)."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if start == stop:
            continue
        if stop - start < SHORT:
            top = decode(v[order[start] if has_order else start])
            for i in range(start, stop):
                value = decode(v[order[i] if has_order else i])
                top = value if value > top else top
                shifted[i] = value
            for i in range(start, stop):
                shifted[i] -= top
            continue
        result = shifted[start:stop]
        if has_order:
            places = order[start:stop]
            for i in range(result.size):
                result[i] = decode(v[places[i]])
        else:
            a = v[start:stop]
            for i in range(result.size):
                result[i] = decode(a[i])
        top = unordered(best(result, 0, result.size, 0))
        for i in range(result.size):
            result[i] -= top


@reordered
def _add(v: Any) -> float:
    s = 0.0
    for i in range(v.size):
        s += v[i]
    return s


@compiled
def _normalise(
    shifted: Any, powers: Any, pointers: Any, order: Any, has_order: bool, logarithm: bool, out: Any, lo: int, hi: int
) -> None:  # fmt: skip
    """Divide the powers by their sum, or subtract its logarithm from the shifted entries; restore the order."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        s = 0.0
        if stop - start < SHORT:
            for i in range(start, stop):
                s += powers[i]
            share = out.dtype.type(np.log(s) if logarithm else s)
            for i in range(start, stop):
                out[order[i] if has_order else i] = shifted[i] - share if logarithm else powers[i] / share
            continue
        s = _add(powers[start:stop])
        share = out.dtype.type(np.log(s) if logarithm else s)
        a = shifted[start:stop] if logarithm else powers[start:stop]
        if has_order:
            places = order[start:stop]
            for i in range(a.size):
                out[places[i]] = a[i] - share if logarithm else a[i] / share
        else:
            result = out[start:stop]
            for i in range(a.size):
                result[i] = a[i] - share if logarithm else a[i] / share


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
