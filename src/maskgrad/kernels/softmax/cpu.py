"""Softmax, its logarithm, logsumexp, and their gradients: one pass over rows, two over columns and very long rows.

Halves are computed in float32 and rounded once. The loops, and how they avoid overflow, are in ``softmax_loops.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import softmax as family
from maskgrad.kernels.cpu.compiler import array, flat
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import Partition, like, partition, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.softmax import cpu_loops as loops


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    if not values.numel() or not values.ndim:
        return family.masked_softmax.reference(values, mask, dim, logarithm)
    values = walkable(values)
    out = like(values, values.dtype)
    mode = loops.LOGARITHM if logarithm else loops.SOFTMAX
    parts = partition((values, mask, out), (dim,), loops.TILE)
    if parts.inner is None and parts.whole:
        _rows(parts, mode, out)
        return out
    first, second, _ = _statistics(partition((values, mask), (dim,), loops.TILE), mode, True)
    _write(out, values, mask, first, second, logarithm, -torch.inf if logarithm else 0.0)
    return out


def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    if not values.numel() or not values.ndim or not dim:
        return family.masked_logsumexp.reference(values, mask, tuple(dim), keepdim)
    parts = partition((walkable(values), mask), dim, loops.TILE)
    result, _, seen = _statistics(parts, loops.LOGSUMEXP, keepdim)
    return result.to(values.dtype), seen


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    if not output.numel() or not output.ndim:
        return family.masked_softmax_backward.reference(grad, output, mask, dim, logarithm)
    output = walkable(output)
    out, grad = like(output, output.dtype), _alike(grad.to(output.dtype), output)
    zero = _number(output, 0)
    parts = partition((output, mask, grad, out), (dim,), loops.TILE)
    dots = empty(parts.results, _wide(output))
    whole = parts.inner is None and parts.whole
    tensors = [flat(x) for x in parts.tensors]
    if parts.inner is None:
        run(
            loops.backward_rows, *tensors, *parts.geometry(), logarithm, whole, zero, dots.numpy(),
            tasks=parts.tasks, elements=output.numel(),
        )  # fmt: skip
        if whole:
            return out
    else:
        parts = partition((output, mask, grad), (dim,), loops.TILE)
        run(
            loops.backward_columns, *tensors[:3], *parts.geometry(), logarithm, zero, dots.numpy(),
            tasks=parts.tasks, elements=output.numel(),
        )  # fmt: skip
    split, merge = parts.split(dots)
    spread = walk(out, grad, output, mask, parts.placed(split.sum(merge), True))
    run(
        loops.backward_write, *(flat(x) for x in spread.tensors), *spread.geometry(), logarithm, zero,
        tasks=spread.tasks, elements=output.numel(),
    )  # fmt: skip
    return out


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    if not values.numel() or not values.ndim:
        return family.masked_logsumexp_backward.reference(grad, values, result, mask)
    values = walkable(values)
    out, wide = like(values, values.dtype), _wide(values)
    shape = torch.broadcast_shapes(grad.shape, result.shape)
    first, second = (x.to(wide).expand(shape).contiguous() for x in (result, grad))
    _write(out, values, mask, first, second, False, 0.0)
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in HALVES else x.dtype


def _number(x: Tensor, number: float) -> Any:
    """``number`` in the type that entries of ``x`` are computed in."""
    return np.float64(number) if x.dtype == torch.float64 else np.float32(number)


def _least(x: Tensor) -> Any:
    return np.int64(np.iinfo(np.int64).min) if x.dtype == torch.float64 else np.int32(np.iinfo(np.int32).min)


def _alike(grad: Tensor, output: Tensor) -> Tensor:
    """``grad``, copied unless its inner stride is 1 where that of ``output`` is."""
    same = all(a == b for n, a, b in zip(grad.shape, grad.stride(), output.stride(), strict=True) if n > 1)
    return grad if same else like(output, grad.dtype).copy_(grad)


def _rows(parts: Partition, mode: int, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, mask, *_ = parts.tensors
    first, second = (empty(parts.results, _wide(values)) for _ in range(2))
    seen = empty(parts.results, torch.bool)
    nothing = _number(values, -np.inf if mode == loops.LOGARITHM else 0)
    run(
        loops.rows, flat(values), flat(mask), flat(out), *parts.geometry(), mode, _number(values, 0), _least(values),
        nothing, first.numpy(), second.numpy(), array(seen), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    return first, second, seen


def _statistics(parts: Partition, mode: int, keepdim: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What ``mode`` makes of the two statistics, and whether there was an entry, for each result of the reduction."""
    values, mask = parts.tensors
    wanted = mode if parts.whole else loops.PARTS
    if parts.inner is None:
        # To be written by ``rows``, a row must be whole; here only numbers are wanted, and ``out`` is never touched.
        parts = partition((values, mask, values), parts.dims, parts.tile)
        first, second, seen = _rows(parts, loops.PARTS if wanted < loops.LOGSUMEXP else wanted, values)
    else:
        first, second = (empty(parts.results, _wide(values)) for _ in range(2))
        seen = empty(parts.results, torch.bool)
        run(
            loops.columns, flat(values), flat(mask), *parts.geometry(), wanted, _number(values, 0), _least(values),
            first.numpy(), second.numpy(), array(seen), tasks=parts.tasks, elements=values.numel(),
        )  # fmt: skip
    if not parts.whole:
        first, second, seen = _merge(parts, mode, first, second, seen)
    return parts.placed(first, keepdim), parts.placed(second, keepdim), parts.placed(seen, keepdim)


def _merge(
    parts: Partition, mode: int, first: Tensor, second: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the statistics of pieces, and make of them what ``mode`` asks for (few numbers, so PyTorch does it)."""
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


def _write(
    out: Tensor, values: Tensor, mask: Tensor, first: Tensor, second: Tensor, logarithm: bool, nothing: float
) -> None:
    spread = walk(out, values, mask, first, second)
    run(
        loops.write, *(flat(x) for x in spread.tensors), *spread.geometry(), logarithm, _number(values, nothing),
        tasks=spread.tasks, elements=values.numel(),
    )  # fmt: skip
