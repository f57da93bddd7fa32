"""Softmax, its logarithm, logsumexp, and their gradients: one pass over rows, two over columns and very long rows.

Half precision is computed in float32 and rounded once. The loops, and how they avoid overflow, are in ``cpu_loops.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu import segments
from maskgrad.kernels.cpu.compiler import compiled, flat, formula
from maskgrad.kernels.cpu.floating import exponential, unordered
from maskgrad.kernels.cpu.lines import sums_of_pairs
from maskgrad.kernels.cpu.loops import number, wide, write
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import Partition, cut_of, like, partition, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.filling import masked_filling
from maskgrad.kernels.segments.cpu import best
from maskgrad.kernels.smallest import any_of
from maskgrad.kernels.softmax import SHORT
from maskgrad.kernels.softmax import cpu_loops as loops

#: Number of values from which one pass is faster for short rows and for columns; columns in which PyTorch's sums lose
#: visible precision.
MANY, LONG = 524_288, 4096


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    if _is_composed(values, dim):
        found = _composed(values.detach(), mask, dim, logarithm)
        if found is not None:
            return found
    values = walkable(values)
    out = like(values, values.dtype)
    mode = loops.LOGARITHM if logarithm else loops.SOFTMAX
    tensors, parts = partition((values, mask, out), (dim,), loops.TILE)
    if parts.inner is None and parts.whole:
        _rows(tensors, parts, mode, out)
        return out
    first, second, _ = statistics(*partition((values, mask), (dim,), loops.TILE), mode, True)
    nothing = -torch.inf if logarithm else 0.0
    return write(loops.WRITE[logarithm], values, None, mask, first, second, nothing=nothing)


def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    values, mask, parts, _ = cut_of(values, mask, dim, loops.TILE, counts=False, joins=False)
    result, _, seen = statistics((values, mask), parts, loops.LOGSUMEXP, keepdim)
    return result if result.dtype is values.dtype else result.to(values.dtype), seen


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    if _is_composed(output, dim):
        grad, alike = grad.detach().to(output.dtype), mask.stride(dim) == 0
        if logarithm and not alike:  # otherwise garbage in a slice affects only that slice
            grad = masked_filling(grad, mask, 0)
        out: Tensor = _DERIVATIVES[logarithm](grad, output.detach(), dim, output.dtype)
        # in an empty slice the output is 0 (the logarithm's exponential), and that times a finite sum
        if not (logarithm and alike) and math.isfinite(out.sum().item()):
            return out
        if not logarithm:  # the output is 0, but masked gradients may be infinite
            out = _DERIVATIVES[logarithm](masked_filling(grad, mask, 0), output.detach(), dim, output.dtype)
        return masked_filling(out, mask, 0)
    output = walkable(output)
    out, grad = like(output, output.dtype), _alike(grad.to(output.dtype), output)
    tensors, parts = partition((output, mask, grad, out), (dim,), loops.TILE)
    if parts.inner is None and parts.whole:
        run(
            loops.backward_rows, *[flat(x) for x in tensors], *parts.geometry, logarithm, number(output, 0),
            tasks=parts.tasks, elements=output.numel(),
        )  # fmt: skip
        return out
    dots, _ = sums_of_pairs(loops.DOTS[logarithm], output, grad, mask, None, (dim,))
    return write(loops.GRADIENTS[logarithm], output, grad, mask, dots)


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    return write(loops.WRITE[False], values, None, mask, result, grad)


#: ``torch.softmax`` and ``torch.log_softmax`` and their derivatives.
_FUNCTIONS = (torch.softmax, torch.log_softmax)
_DERIVATIVES = (torch._softmax_backward_data, torch._log_softmax_backward_data)


def _is_composed(values: Tensor, dim: int) -> bool:
    """Return whether PyTorch's softmax, with a fill, takes less time than the loops: in short rows, and along columns.

    Measured on one core, in microseconds, with the gradient, composed / loops: 256 x 256 along dim 0 351 / 611,
    64 x 200 x 8 along dim 1 1144 / 1652; the rows of 1024 x 64 159 / 191, of 8192 x 32 739 / 1042, of 256 x 256
    137 / 128, of 12,800 x 8 2990 / 1580.
    """
    length = values.shape[dim]
    return values.numel() <= MANY and (length in SHORT if values.stride(dim) == 1 else length <= LONG)


def _composed(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor | None:
    """PyTorch's softmax and a fill, or two; None if there is a NaN among the entries."""
    nothing = -torch.inf if logarithm else 0.0
    if mask.stride(dim) == 0:  # slices are specified or masked as a whole
        return masked_filling(_FUNCTIONS[logarithm](values, dim), mask, nothing)
    found: Tensor = _FUNCTIONS[logarithm](masked_filling(values, mask, -torch.inf), dim)
    if not math.isnan(found.sum().item()):
        return found
    found = masked_filling(
        found, any_of(mask, (dim,), True).expand(mask.shape), nothing
    )  # slices without entries
    return None if math.isnan(found.sum().item()) else found


def _least(x: Tensor) -> Any:
    return np.int64(np.iinfo(np.int64).min) if x.dtype == torch.float64 else np.int32(np.iinfo(np.int32).min)


def _alike(grad: Tensor, output: Tensor) -> Tensor:
    """``grad``, copied unless its inner stride is 1 where that of ``output`` is."""
    same = all(a == b for n, a, b in zip(grad.shape, grad.stride(), output.stride(), strict=True) if n > 1)
    return grad if same else like(output, grad.dtype).copy_(grad)


def _rows(
    tensors: Sequence[Tensor], parts: Partition, mode: int, out: Tensor, keepdim: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    values, mask, *_ = tensors
    first, second, seen = values, values, mask  # not written
    if mode not in (loops.SOFTMAX, loops.LOGARITHM):
        first, second, seen = (parts.empty(t, keepdim) for t in (*[wide(values)] * 2, torch.bool))
    nothing = number(values, -np.inf if mode == loops.LOGARITHM else 0)
    outer, steps, *lengths, inners = parts.geometry
    # Statistics have no third tensor; one loop is compiled for both.
    steps, inners = (*steps, 1)[:3], (*inners, 0)[:3]
    run(
        loops.rows, flat(values), flat(mask), flat(out), outer, steps, *lengths, inners, mode, number(values, 0),
        _least(values), nothing, flat(first), flat(second), flat(seen), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    return first, second, seen


def statistics(
    tensors: Sequence[Tensor], parts: Partition, mode: int, keepdim: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply ``mode`` to the two statistics; also return whether there is an entry, for each result of the reduction."""
    values, mask = tensors
    wanted = mode if parts.whole else loops.PARTS
    if parts.inner is None:
        # Rows must be whole only to be written by ``rows``; here only statistics are needed, and ``out`` is unused.
        first, second, seen = _rows(
            tensors, parts, loops.PARTS if wanted < loops.LOGSUMEXP else wanted, values, keepdim
        )
    else:
        first, second, seen = (parts.empty(t, keepdim) for t in (*[wide(values)] * 2, torch.bool))
        run(
            loops.columns, flat(values), flat(mask), *parts.geometry, wanted, number(values, 0), _least(values),
            flat(first), flat(second), flat(seen), tasks=parts.tasks, elements=values.numel(),
        )  # fmt: skip
    if parts.is_direct:
        return first, second, seen
    if not parts.whole:
        first, second, seen = _merge(parts, mode, first, second, seen)
    return parts.placed(first, keepdim), parts.placed(second, keepdim), parts.placed(seen, keepdim)


def _merge(
    parts: Partition, mode: int, first: Tensor, second: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the statistics of pieces, and apply ``mode`` (in PyTorch, as there are few values)."""
    tops, merge = parts.split(first)
    totals, seen = parts.split(second)[0].double(), parts.split(seen)[0].any(merge)
    top = tops.amax(merge, keepdim=True)
    shifts, shift = (torch.where(x.isfinite(), x, 0).double() for x in (tops, top))
    # Nothing was added where the largest is -inf; the factor could be inf there.
    total = torch.where(tops == -torch.inf, 0.0, totals * torch.exp(shifts - shift)).sum(merge)
    top, shift = top.squeeze(tuple(merge)), shift.squeeze(tuple(merge))
    finite = top.isfinite()
    if mode == loops.LOGSUMEXP:
        return torch.where(finite, (shift + total.log()).to(top.dtype), top), total.to(top.dtype), seen
    second = torch.where(finite, total.log() if mode == loops.LOGARITHM else total.reciprocal(), torch.nan)
    return shift.to(top.dtype), second.to(top.dtype), seen


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    v = values.detach().to(wide(values))
    out = empty((pointers.shape[0] - 1, *values.shape[1:]), v.dtype)
    run(
        _segments, segments.entries(v), *segments.bounds(pointers, order), math.prod(values.shape[1:]),
        out.view(-1).numpy(), tasks=len(out), elements=values.numel(),
    )  # fmt: skip
    return out


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    grad, result = (x.detach().to(wide(values)) for x in (grad, result))
    return segments.write(_SEGMENT_BACKWARD, values, values, grad, result, pointers, order)


@formula
def _share(x: Any, y: Any, grad: Any, total: Any) -> Any:
    return exponential(x - total) * grad


@formula
def _power(x: Any, shift: Any) -> Any:
    return exponential(x - shift)


_SEGMENT_BACKWARD = segments.writing(_share, together=True)
_add_powers, _, _ = segments.adding(_power)


@compiled
def _segments(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, out: Any, lo: int, hi: int
) -> None:
    """Gather segments that are not contiguous: exponentials are vectorised, and added in float64."""
    plain = width == 1 and not has_order
    together = np.empty(0 if plain else segments.longest(pointers, lo, hi), v.dtype)
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        for j in range(width):
            if start == stop:
                out[k * width + j] = -np.inf
                continue
            segment = v[start:stop] if plain else together[: stop - start]
            if has_order:
                segments.gather(v, order[start:stop], width, j, segment)
            elif not plain:
                for i in range(segment.size):
                    segment[i] = v[(start + i) * width + j]
            shift = unordered(best(segment, 0, segment.size, 0))
            if not np.isfinite(shift):
                shift = v.dtype.type(0)
            out[k * width + j] = np.log(_add_powers(segment, shift, 0.0)) + shift
