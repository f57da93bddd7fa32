r"""Reductions and softmax over segments of stored entries: each segment is read where it lies.

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

from maskgrad.kernels import segments as family
from maskgrad.kernels.cpu.compiler import array, compiled, decode, formula, reordered
from maskgrad.kernels.cpu.floating import ordered, restored, unordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.sorting import fits, runs
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.kernel import HALVES

SHORT = 32  # entries of a segment that a plain loop is done with before a slice is made
_NO_ORDER = np.empty(0, np.int64)


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
    if not values.numel() or not exact:
        return family.segment_sum.reference(values, pointers, order, dtype)
    return _summed(_SUM, values, None, pointers, order, dtype)


def segment_squares(values: Tensor, center: Tensor | None, pointers: Tensor, order: Tensor | None) -> Tensor:
    return _summed(_SQUARES, values, center, pointers, order, family.widened(values.new_empty(0)).dtype)


def _summed(
    loop: Any,
    values: Tensor,
    center: Tensor | None,
    pointers: Tensor,
    order: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), dtype)
    wide = np.float64(0) if values.is_floating_point() else np.int64(0)
    centers = np.empty(0, wide.dtype) if center is None else entries(center.detach().double())
    run(
        loop, entries(values), *bounds(pointers, order), width, centers, wide, out.view(-1).numpy(),
        tasks=rows, elements=values.numel() // LIGHT,
    )  # fmt: skip
    return out


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
    if not values.numel():
        return family.segment_extremum.reference(values, pointers, order, largest)
    rows, width = pointers.shape[0] - 1, math.prod(values.shape[1:])
    out = empty((rows, *values.shape[1:]), torch.float32 if values.dtype in HALVES else values.dtype)
    run(
        _extremum, entries(values), *bounds(pointers, order), width, 0 if largest else -1,
        out.view(-1).numpy(),
        tasks=rows, elements=values.numel(),
    )  # fmt: skip
    return out.to(values.dtype)


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    if not _scalar_floats(values):
        return family.segment_softmax.reference(values, pointers, order, logarithm)
    where, size = bounds(pointers, order), values.shape[0]
    wide, tasks = torch.float32 if values.dtype in HALVES else values.dtype, len(pointers) - 1
    shifted = empty(size, wide)
    run(_shift, entries(values), *where, shifted.numpy(), tasks=tasks, elements=size)
    powers = torch.exp(shifted, out=empty(size, wide) if logarithm else shifted)
    out = shifted if order is None else empty(size, wide)  # in its place where entries keep theirs
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
    """Entries that are single numbers; vectors (hybrid layouts) and nothing at all are left to the reference."""
    return values.ndim == 1 and values.numel() > 0 and values.is_floating_point()


def entries(x: Tensor) -> Any:
    """The numbers of ``x`` one behind the other."""
    return array(x.detach().contiguous().view(-1))


def bounds(pointers: Tensor, order: Tensor | None) -> tuple[Any, Any, bool]:
    """Arrays of one type in every case, so that one version is compiled."""
    has_order = order is not None
    return entries(pointers.long()), (entries(order) if order is not None else _NO_ORDER), has_order


@compiled
def _places(keys: Any, places: Any, order: Any) -> None:
    for i in range(keys.size):
        order[i] = keys[i] & places


def _summing(term: Any) -> Any:
    """A loop that sums ``term(x, c)`` of the entries and centers of each segment, in the type of ``wide``."""

    @reordered
    def add(v: Any, center: Any, wide: Any) -> Any:
        s = wide
        for i in range(v.size):
            s += term(decode(v[i]), center)
        return s

    @compiled
    def loop(
        v: Any, pointers: Any, order: Any, has_order: bool, width: int, centers: Any, wide: Any, out: Any, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        if width == 1:
            for k in range(lo, hi):
                start, stop, s = pointers[k], pointers[k + 1], wide
                center = centers[k] if centers.size else wide
                if has_order:
                    for i in range(start, stop):
                        s += term(decode(v[order[i]]), center)
                elif stop - start < SHORT:
                    for i in range(start, stop):
                        s += term(decode(v[i]), center)
                else:
                    s = add(v[start:stop], center, wide)
                out[k] = s
            return
        acc, center_row = np.full(width, wide), np.full(width, wide)
        for k in range(lo, hi):
            acc[:] = wide
            if centers.size:
                center_row[:] = centers[k * width : (k + 1) * width]
            for i in range(pointers[k], pointers[k + 1]):
                at = (order[i] if has_order else i) * width
                a = v[at : at + width]
                for j in range(width):
                    acc[j] += term(decode(a[j]), center_row[j])
            result = out[k * width : (k + 1) * width]
            for j in range(width):
                result[j] = acc[j]

    return loop


@formula
def _itself(x: Any, center: Any) -> Any:
    return x


@formula
def _square(x: Any, center: Any) -> Any:
    return (x - center) * (x - center)


_SUM, _SQUARES = _summing(_itself), _summing(_square)


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
        else:  # indices without a sign make vector code of it; slices took eight times as long
            first = np.uint64(k * width)
            for i in range(pointers[k], pointers[k + 1]):
                at = np.uint64((order[i] if has_order else i) * width)
                for u in range(np.uint64(width)):
                    out[at + u] = v[first + u]


@compiled
def _best(a: Any, turn: int) -> Any:
    """Among integers that have the order of the numbers, or the other: NaN wins, and the loop is vector code."""
    best = ordered(decode(a[0]), turn)
    for i in range(a.size):
        key = ordered(decode(a[i]), turn)
        best = key if key > best else best
    return best


@compiled
def _extremum(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, turn: int, out: Any, lo: int, hi: int
) -> None:
    """The largest, or, with a ``turn`` of -1, the smallest; 0 of an empty segment."""
    if width == 1:
        for k in range(lo, hi):
            start, stop = pointers[k], pointers[k + 1]
            if start == stop:
                out[k] = 0
                continue
            if not has_order and stop - start >= SHORT:
                best = _best(v[start:stop], turn)
            else:
                best = ordered(decode(v[order[start] if has_order else start]), turn)
                for i in range(start + 1, stop):
                    key = ordered(decode(v[order[i] if has_order else i]), turn)
                    best = key if key > best else best
            out[k] = restored(best, turn, out[0])
        return
    keys = np.full(width, ordered(decode(v[0]), turn))
    for k in range(lo, hi):
        result = out[k * width : (k + 1) * width]
        result[:] = 0
        for i in range(pointers[k], pointers[k + 1]):
            at = (order[i] if has_order else i) * width
            a = v[at : at + width]
            for j in range(width):
                key = ordered(decode(a[j]), turn)
                keys[j] = key if (i == pointers[k]) | (key > keys[j]) else keys[j]
        if pointers[k] < pointers[k + 1]:
            for j in range(width):
                result[j] = restored(keys[j], turn, out[0])


@compiled
def _shift(v: Any, pointers: Any, order: Any, has_order: bool, shifted: Any, lo: int, hi: int) -> None:
    """Entries, segment by segment, less the largest of theirs, which a NaN need not be: it spoils the sum anyway."""
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if stop - start < SHORT:
            best = decode(v[order[start] if has_order else start])
            for i in range(start, stop):
                value = decode(v[order[i] if has_order else i])
                best = value if value > best else best
                shifted[i] = value
            for i in range(start, stop):
                shifted[i] -= best
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
        best = unordered(_best(result, 0))
        for i in range(result.size):
            result[i] -= best


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
    """Divide the powers by their sum, or take its logarithm off the shifted entries; put each back to its place."""
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
