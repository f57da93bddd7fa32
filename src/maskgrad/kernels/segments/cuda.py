r"""Reductions and softmax over segments of stored entries: each segment is read in place.

Nothing is searched: the caller passes the segments (``pointers``, and ``order`` where the entries of one are not
contiguous). Sums are added in float64 (integers in int64). Sorting is PyTorch's.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import segments as family
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, over_segments, power
from maskgrad.kernels.cuda.runs import name_outside
from maskgrad.kernels.extrema.cuda import EXTREMUM, readable
from maskgrad.kernels.kernel import HALVES


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """As in the reference; an index outside the table is an IndexError (the host waits for the result anyway)."""
    ascending, order = torch.sort(indices, stable=True)
    if len(indices):
        smallest, largest = torch.stack((ascending[0], ascending[-1])).tolist()
        if smallest < 0 or largest >= num_rows:
            name_outside(indices, num_rows)
    rows, counts = torch.unique_consecutive(ascending, return_counts=True)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order, rows


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    exact = values.dtype == dtype or (values.is_floating_point() and dtype in (torch.float32, torch.float64))
    if not exact:
        return family.segment_sum.reference(values, pointers, order, dtype)
    return merged(values, pointers, order, "sum", dtype)


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    return merged(values, pointers, order, "amax" if largest else "amin", values.dtype)


def merged(values: Tensor, pointers: Tensor, order: Tensor | None, reduce: str, dtype: torch.dtype) -> Tensor:
    """The sum, mean, amax or amin of each segment, rounded once to ``dtype``."""
    if reduce in ("amax", "amin"):
        source, neutral = readable(values, reduce == "amax")
        return over_segments(EXTREMUM, pointers, order, (source,), (dtype,), kind=neutral, exact=False)[0]
    return over_segments(_SUM, pointers, order, (values,), (dtype,), kind=reduce == "mean")[0]


def segment_expand(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    out = values.new_empty((number, *values.shape[1:]))
    if out.numel():
        over_segments(WRITES, pointers, order, (), few=(values,), out=out, of=_first, exact=False)
    return out


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    out = torch.empty_like(values, requires_grad=False, memory_format=torch.contiguous_format)
    if out.numel():
        over_segments(POWERS, pointers, order, (values,), out=out, of=softmax_of, kind=logarithm, exact=False)
    return out


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    if grad.dtype != output.dtype:
        return family.segment_softmax_backward.reference(grad, output, pointers, order, logarithm)
    out = torch.empty_like(output, requires_grad=False, memory_format=torch.contiguous_format)
    if out.numel():
        over_segments(
            PRODUCTS,
            pointers,
            order,
            (grad, output),
            out=out,
            of=softmax_slope,
            kind=logarithm,
            exact=False,
        )
    return out


@compiled
def _first(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return x[0]


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """Sum and number of entries."""
    return tl.zeros((ROWS, COLUMNS), ACC), tl.zeros((ROWS, COLUMNS), tl.int64)


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    return state[0] + tl.where(there, x[0], 0), state[1] + there.to(tl.int64)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, MEAN: tl.constexpr) -> tl.tensor:
    result = tl.sum(state[0], axis=1)
    if MEAN:
        result = result / tl.maximum(tl.sum(state[1], axis=1), 1)
    return (result,)


_SUM = Accumulator(_start, _step, _finish)


@compiled
def start_powers(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    """The largest entry so far, and the sum of the powers of all less that one."""
    return tl.full((ROWS, COLUMNS), float("-inf"), ACC), tl.zeros((ROWS, COLUMNS), ACC)


@compiled
def step_powers(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """A NaN is never the largest, and spoils the sum; so does inf, less itself, unless ``KIND`` is 2 (logsumexp).

    One power for each entry: of the new one less the largest, or of the largest less the new one.
    """
    best, total = state
    v = tl.where(there, x[0], float("-inf"))
    grows = v > best
    e = tl.exp(tl.where(grows, best - v, v - best))
    e = tl.where(v == float("-inf"), 0, e)  # less itself it would be NaN
    one = tl.where(v == float("inf"), float("inf") if KIND == 2 else float("nan"), 1)
    added = tl.where(v == float("inf"), one, e)
    return tl.where(grows, v, best), tl.where(grows, total * e + one, total + added)


@compiled
def finish_powers(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    best, total = state
    largest = tl.max(best, axis=1)
    same = best == largest[:, None]
    total = tl.where(same, total, total * tl.exp(best - largest[:, None])).to(tl.float64)
    if KIND == 2:
        largest = tl.where(tl.abs(largest) == float("inf"), 0, largest)
    return largest, tl.sum(total, axis=1)


POWERS = Accumulator(start_powers, step_powers, finish_powers)


@compiled
def softmax_of(x: tl.tensor, at: tl.tensor, n: tl.tensor, LOGARITHM: tl.constexpr) -> tl.tensor:
    """The softmax of an entry, from the results of :data:`POWERS`."""
    v, largest, total = x
    return (v - largest) - tl.log(total) if LOGARITHM else power(v - largest) / total


@compiled
def _start_products(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    return (tl.zeros((ROWS, COLUMNS), tl.float64),)


@compiled
def _step_products(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, LOGARITHM: tl.constexpr
) -> tl.tensor:
    g = x[0].to(tl.float64)
    if not LOGARITHM:
        g = g * x[1].to(tl.float64)
    return (state[0] + tl.where(there, g, 0),)


@compiled
def _finish_products(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return (tl.sum(state[0], axis=1),)


PRODUCTS = Accumulator(_start_products, _step_products, _finish_products)


@compiled
def softmax_slope(x: tl.tensor, at: tl.tensor, n: tl.tensor, LOGARITHM: tl.constexpr) -> tl.tensor:
    grad, soft, added = x
    return grad - power(soft) * added if LOGARITHM else soft * (grad - added)
