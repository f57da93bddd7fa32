"""Loops for all families: a family defines what to do with an entry, and these traverse the memory.

A *formula* is a compiled function ``of(x, at, n, KIND)``: ``x`` are the operands of an entry in the type of the
computation, ``at`` its position along the row, ``n`` four scalars, ``KIND`` a constant for the compiler. An
:class:`Accumulator` is three functions: ``start(ROWS, COLUMNS, KIND, ACC)`` returns the state of each thread, a tuple;
``step(state, there, x, at, n, KIND)`` the state after an entry, if ``there``; ``finish(state, n, KIND)`` the
results of a row from all threads. A row may be written after it was reduced: the formula then gets these results
after the operands. Rows are those of a table, with a mask, or segments of entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, power_of_two, precision
from maskgrad.kernels.cuda.tiles import Table, cut, place, restored, table, tile, tile_place

ENTRIES = 1024  # of a tile of lanes and steps


class Accumulator(NamedTuple):
    """A reduction: see above."""

    start: Any
    step: Any
    finish: Any


WRITES = Accumulator(None, None, None)


def write(
    of: Any,
    out: Tensor,
    mask: Tensor,
    *operands: Tensor,
    kind: float = 0,
    numbers: Sequence[float] = (),
) -> Tensor:
    """Write the formula ``of`` of each entry to ``out`` where the mask holds, else 0; operands broadcast to it."""
    if out.numel():
        bits, entries = mask.view(torch.int8), tuple(x.detach().expand(out.shape) for x in operands)
        rows, inner, tall, side, pieces = cut(out, bits, *entries)
        launch(
            _each, -(-rows.number // tall) * pieces, out, bits, entries, rows.number, rows.sizes, sum(rows.strides, ()),
            inner.number, inner.sizes, sum(inner.strides, ()), pieces, *_four(numbers), OF=of, KIND=kind,
            ACC=precision(entries[0].dtype), INDEX=index_type(out, bits, *entries), TALL=tall, WIDE=side,
        )  # fmt: skip
    return out


def reduce(
    accumulator: Accumulator,
    mask: Tensor,
    entries: Sequence[Tensor],
    dim: Sequence[int],
    results: Sequence[torch.dtype],
    *,
    few: Sequence[Tensor] = (),
    out: Tensor | None = None,
    of: Any = None,
    kind: float = 0,
    numbers: Sequence[float] = (),
    whole: bool = False,
    nothing: float = 0.0,
) -> tuple[list[Tensor], Table]:
    """Reduce specified entries over ``dim``: results of :func:`pieces_of`, to be merged, and their table.

    ``few`` are scalars per row; all tensors have one shape. With ``of``, ``out`` is written, row by row, and
    ``nothing`` where the mask does not hold.
    """
    bits = mask.view(torch.int8)
    read = tuple(x.detach() for x in entries)
    shared = tuple(x.detach().expand(mask.shape) for x in few)
    written = () if out is None else (out,)
    every = (*read, bits, *shared, *written)
    view = table(every, dim, whole)
    size = view.kept.number * view.tile.pieces
    found = [torch.empty(size, dtype=dtype, device=mask.device) for dtype in results]
    memory = tuple(x.view(torch.int8) if x.dtype == torch.bool else x for x in found)
    kept, reduced, tile = view.kept, view.reduced, view.tile
    launch(
        _over_table, -(-kept.number // tile.kept) * tile.pieces, read, bits, shared, written, memory, kept.number,
        kept.sizes, sum(kept.strides, ()), reduced.number, reduced.sizes, sum(reduced.strides, ()), tile.piece,
        tile.pieces, *_four(numbers), START=accumulator.start, STEP=accumulator.step, FINISH=accumulator.finish, OF=of,
        KIND=kind, ACC=precision(read[0].dtype), INDEX=index_type(*every), KEPT=tile.kept, REDUCED=tile.reduced,
        NOTHING=nothing,
    )  # fmt: skip
    return [x.view(-1, tile.pieces) for x in found], view


def totals(found: Sequence[Tensor], view: Table, keepdim: bool) -> list[Tensor]:
    """The sums of the pieces that :func:`reduce` gave, in the shape of the reduction."""
    return [restored(x.sum(1) if x.shape[1] > 1 else x, view, keepdim) for x in found]


def over_segments(
    accumulator: Accumulator,
    pointers: Tensor,
    order: Tensor | None,
    entries: Sequence[Tensor],
    results: Sequence[torch.dtype] = (),
    *,
    few: Sequence[Tensor] = (),
    out: Tensor | None = None,
    of: Any = None,
    kind: float = 0,
    exact: bool = True,
) -> list[Tensor]:
    """The same for each segment: results (g, *dense), of entries (n, *dense) and ``few`` (g, *dense).

    Floats are computed in float64 if ``exact``.
    """
    read, shared = (tuple(x.detach().contiguous() for x in given) for given in (entries, few))
    written = () if out is None else (out,)
    like = read[0] if out is None else out
    number, dense = len(like), like.shape[1:]
    segments, width = pointers.shape[0] - 1, math.prod(dense)
    found = [like.new_empty((segments, *dense), dtype=dtype) for dtype in results]
    step = power_of_two(max(number // max(segments, 1), 1), ENTRIES if width < 16 else 32)
    lanes = power_of_two(segments * width, ENTRIES // step)
    kind_of = precision(like.dtype)
    launch(
        _over_segments, -(-segments * width // lanes), read, shared, written, tuple(found), pointers.contiguous(),
        pointers if order is None else order.contiguous(), segments * width, width, START=accumulator.start,
        STEP=accumulator.step, FINISH=accumulator.finish, OF=of, KIND=kind,
        ACC=tl.float64 if exact and like.is_floating_point() else kind_of, ORDERED=order is not None,
        INDEX=index_type(*read, *shared, *written, *found), LANES=lanes, EACH=step,
    )  # fmt: skip
    return found


def _four(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(x) for x in (*numbers, 0, 0, 0, 0)[:4])


@compiled
def number_of(x: tl.float64, ACC: tl.constexpr) -> tl.tensor:
    """A scalar in the type of the computation; other ways to make a tensor of it go through float32."""
    return tl.full((1,), x, ACC)


@compiled
def power(x: tl.tensor) -> tl.tensor:
    """The exponential of ``x``, at most 0, to the last digits; on a GPU ``tl.exp`` loses more the larger ``-x`` is."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    # less n log(2) in two parts, of which the first has few bits
    rest = (x - n * 0.693359375) + n * 2.1219444e-4
    return tl.where(x > -87, tl.exp(rest) * tl.exp2(n), tl.where(x == x, 0.0, x))


@compiled
def narrowed(x: tl.tensor, type: tl.constexpr) -> tl.tensor:
    """Round to ``type``; half precision via float32, as the compiler requires."""
    if type == tl.float16 or type == tl.bfloat16:
        x = x.to(tl.float32)
    return x.to(type)


@compiled
def _shared(few: tl.tensor, at: tl.tensor, inside: tl.tensor, ACC: tl.constexpr) -> tl.tensor:
    """One scalar per row, in the type of the computation unless it is an integer."""
    x = tl.load(few + at, mask=inside, other=0)
    return x.to(ACC) if few.dtype.element_ty.is_floating() else x


@compiled
def _each(
    out: tl.tensor, mask: tl.tensor, entries: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor, row_strides: tl.tensor,
    length: tl.tensor, sizes: tl.tensor, strides: tl.tensor, pieces: tl.tensor, a: tl.float64, b: tl.float64,
    c: tl.float64, d: tl.float64, OF: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Program p writes tile p % pieces of the rows TALL * (p // pieces), ... ."""
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    n = (number_of(a, ACC), number_of(b, ACC), number_of(c, ACC), number_of(d, ACC))
    m = tl.load(
        mask + tile_place(row, row_sizes, row_strides, column, sizes, strides, 1), mask=inside, other=0
    )
    x = ()
    for i in tl.static_range(len(entries)):
        where = tile_place(row, row_sizes, row_strides, column, sizes, strides, 2 + i)
        x = x + (tl.load(entries[i] + where, mask=inside, other=0).to(ACC),)
    result = tl.where(m != 0, OF(x, column[None, :], n, KIND), 0)
    where = tile_place(row, row_sizes, row_strides, column, sizes, strides)
    tl.store(out + where, narrowed(result, out.dtype.element_ty), mask=inside)


@compiled
def _row(
    entries: tl.tensor, rows: tl.tensor, r: tl.tensor, inside: tl.tensor, sizes: tl.tensor, steps: tl.tensor,
    ACC: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Operands of the entries ``r`` of some rows."""
    x = ()
    for i in tl.static_range(len(entries)):
        v = tl.load(entries[i] + rows[i][:, None] + place(r, sizes, steps, i)[None, :], mask=inside, other=0)
        x = x + (v.to(ACC),)
    return x


@compiled
def _there(
    mask: tl.tensor, row: tl.tensor, r: tl.tensor, inside: tl.tensor, sizes: tl.tensor, steps: tl.tensor,
    TENSOR: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return which entries of some rows are specified."""
    at = row[:, None] + place(r, sizes, steps, TENSOR)[None, :]
    return tl.load(mask + at, mask=inside, other=0) != 0


@compiled
def _over_table(
    entries: tl.tensor, mask: tl.tensor, few: tl.tensor, out: tl.tensor, results: tl.tensor, kept: tl.tensor,
    kept_sizes: tl.tensor, kept_strides: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, steps: tl.tensor,
    piece: tl.tensor, pieces: tl.tensor, a: tl.float64, b: tl.float64, c: tl.float64, d: tl.float64,
    START: tl.constexpr, STEP: tl.constexpr, FINISH: tl.constexpr, OF: tl.constexpr, KIND: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, NOTHING: tl.constexpr,
) -> None:  # fmt: skip
    """Program p handles piece p % pieces of the rows KEPT * (p // pieces), ... ."""
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    n = (number_of(a, ACC), number_of(b, ACC), number_of(c, ACC), number_of(d, ACC))
    own: tl.constexpr = len(entries)
    last: tl.constexpr = own + 1 + len(few)
    rows = ()
    for i in tl.static_range(last + len(out)):
        rows = rows + (place(k, kept_sizes, kept_strides, i),)
    known = ()
    for i in tl.static_range(len(few)):
        known = known + (_shared(few[i], rows[own + 1 + i], k < kept, ACC)[:, None],)
    if STEP is not None:
        state = START(KEPT, REDUCED, KIND, ACC)
        for first in range(start, stop, REDUCED):
            r = first + tl.arange(0, REDUCED)
            inside = (k < kept)[:, None] & (r < stop)[None, :]
            m = _there(mask, rows[own], r, inside, sizes, steps, own)
            x = _row(entries, rows, r, inside, sizes, steps, ACC)
            state = STEP(state, m, x + known, r[None, :], n, KIND)
        found = FINISH(state, n, KIND)
        for i in tl.static_range(len(results)):
            target = results[i] + k * pieces + program % pieces
            tl.store(target, narrowed(found[i], results[i].dtype.element_ty), mask=k < kept)
        for i in tl.static_range(len(found)):
            known = known + (found[i][:, None].to(ACC),)
    if OF is not None:
        for first in range(start, stop, REDUCED):
            r = first + tl.arange(0, REDUCED)
            inside = (k < kept)[:, None] & (r < stop)[None, :]
            m = _there(mask, rows[own], r, inside, sizes, steps, own)
            x = _row(entries, rows, r, inside, sizes, steps, ACC)
            result = tl.where(m, OF(x + known, r[None, :], n, KIND), NOTHING)
            to = out[0] + rows[last][:, None] + place(r, sizes, steps, last)[None, :]
            tl.store(to, narrowed(result, out[0].dtype.element_ty), mask=inside)


@compiled
def _segment(
    entries: tl.tensor, order: tl.tensor, entry: tl.tensor, inside: tl.tensor, width: tl.tensor, column: tl.tensor,
    ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Operands of some entries of each lane, and their positions."""
    at = entry
    if ORDERED:
        at = tl.load(order + entry, mask=inside, other=0).to(INDEX)
    at = at * width + column[:, None]
    x = ()
    for i in tl.static_range(len(entries)):
        x = x + (tl.load(entries[i] + at, mask=inside, other=0).to(ACC),)
    return x, at


@compiled
def _over_segments(
    entries: tl.tensor, few: tl.tensor, out: tl.tensor, results: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, START: tl.constexpr, STEP: tl.constexpr, FINISH: tl.constexpr,
    OF: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
    LANES: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """A *lane* is one segment and one column of the entries; lanes of neighbouring columns lie together.

    A program steps through its lanes' segments, and stops after the longest, so a segment that is
    far longer than all others costs time.
    """
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    known = ()
    for i in tl.static_range(len(few)):
        known = known + (_shared(few[i], lane, lane < number, ACC)[:, None],)
    if STEP is not None:
        state = START(LANES, EACH, KIND, ACC)
        for done in range(0, longest, EACH):
            entry = start[:, None] + done + tl.arange(0, EACH)[None, :]
            inside = entry < stop[:, None]
            x, at = _segment(entries, order, entry, inside, width, column, ACC, ORDERED, INDEX)
            state = STEP(state, inside, x + known, entry, (), KIND)
        found = FINISH(state, (), KIND)
        for i in tl.static_range(len(results)):
            tl.store(results[i] + lane, narrowed(found[i], results[i].dtype.element_ty), mask=lane < number)
        for i in tl.static_range(len(found)):
            known = known + (found[i][:, None].to(ACC),)
    if OF is not None:
        for done in range(0, longest, EACH):
            entry = start[:, None] + done + tl.arange(0, EACH)[None, :]
            inside = entry < stop[:, None]
            x, at = _segment(entries, order, entry, inside, width, column, ACC, ORDERED, INDEX)
            result = tl.broadcast_to(OF(x + known, entry, (), KIND), (LANES, EACH))
            tl.store(out[0] + at, narrowed(result, out[0].dtype.element_ty), mask=inside)
