r"""Losses of two tensors, entry by entry: one pass that reads both and the mask, and another for the gradient.

.. math:: L = \sum_i m_i\, \ell(x_i, t_i), \qquad \frac{\partial L}{\partial x_i} = g\, m_i\, \ell'(x_i, t_i)

The formulas are in the reference. A selection stands where a product with :math:`m` is written. Each thread adds in the
type of the values (halves in float32), and what the threads and the pieces have is added in float64, in an order
that depends on shapes and strides alone.

What is no probability has the loss NaN. It is refused as PyTorch refuses it on a GPU, by an error of the device that
the host meets later.

Legend: x input, t target, m mask, g gradient of the result; q, limit, p, r the numbers of a distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import losses as family
from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, precision
from maskgrad.kernels.cuda.runs import number_of
from maskgrad.kernels.cuda.tiles import entrywise, place, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.losses import KINDS

_DISTANCE, _LOGITS = tl.constexpr(KINDS.index("distance")), tl.constexpr(KINDS.index("logits"))


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    out = torch.empty_like(input, requires_grad=False)
    entrywise(
        _losses, out, input.detach(), target.detach(), mask.view(torch.int8), **_constants(input, kind, numbers)
    )  # fmt: skip
    if kind == "probabilities" and _holds_nan(out.sum()):
        return family.masked_loss.reference(input, target, mask, kind, numbers)  # says what is wrong
    return out


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    tensors = input.detach(), target.detach(), mask.view(torch.int8)
    view = table(tensors, range(input.ndim))
    reduced, tile = view.reduced, view.tile
    totals = torch.empty(tile.pieces, dtype=torch.float64, device=input.device)
    counts = torch.empty(tile.pieces, dtype=torch.int64, device=input.device)
    launch(
        _loss_sums, tile.pieces, *tensors, totals, counts, reduced.number, reduced.sizes, *reduced.strides, tile.piece,
        INDEX=index_type(*tensors), WIDE=tile.reduced, **_constants(input, kind, numbers),
    )  # fmt: skip
    total, count = totals.sum(), counts.sum()
    if kind == "probabilities" and _holds_nan(total):
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    return total.to(torch.float32 if input.dtype in HALVES else input.dtype), count


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_gradient.reference(grad, input, target, mask, kind, numbers)
    out = torch.empty_like(input, requires_grad=False)
    entrywise(
        _gradients, out, grad.detach().expand(input.shape), input.detach(), target.detach(), mask.view(torch.int8),
        **_constants(input, kind, numbers),
    )  # fmt: skip
    return out


def _constants(input: Tensor, kind: str, numbers: Sequence[float]) -> dict[str, object]:
    q, limit, p, r = (float(x) for x in numbers or (0, 0, 0, 0))
    return {"q": q, "limit": limit, "p": p, "r": r, "KIND": KINDS.index(kind), "ACC": precision(input.dtype)}


def _holds_nan(total: Tensor) -> bool:
    """Whether a sum of losses is NaN; on a GPU nobody waits for the answer, and it is an error there."""
    if total.is_cuda:
        torch._assert_async(
            ~total.isnan(), "input and target of a binary cross entropy should be between 0 and 1 where specified"
        )  # fmt: skip
        return False
    return bool(total.isnan())


@compiled
def logarithm_1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x) without loss of digits: what is rounded off in 1 + x is made good by a factor (Kahan)."""
    u = 1 + x
    d = u - 1
    return tl.where(d == 0, x, tl.log(u) * (x / tl.where(d == 0, 1, d)))


@compiled
def loss_of(
    x: tl.tensor, t: tl.tensor, q: tl.tensor, limit: tl.tensor, p: tl.tensor, r: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """The loss of each entry, also where the mask does not hold."""
    if KIND == _DISTANCE:
        a = tl.abs(x - t)
        loss = tl.where(a > limit, p * a - r, q * a * a)
    elif KIND == _LOGITS:
        log_sigmoid = tl.where(x < 0, x, 0) - logarithm_1p(tl.exp(-tl.abs(x)))
        loss = (1 - t) * x - log_sigmoid
    else:
        yes = tl.log(x)
        no = logarithm_1p(-x)
        yes = tl.where(yes > -100, yes, -100)
        no = tl.where(no > -100, no, -100)
        allowed = (x >= 0) & (x <= 1) & (t >= 0) & (t <= 1)
        loss = tl.where(allowed, (t - 1) * no - t * yes, float("nan"))
    return loss


@compiled
def _losses(
    out: tl.tensor, input: tl.tensor, target: tl.tensor, mask: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor,
    o_rows: tl.tensor, x_rows: tl.tensor, t_rows: tl.tensor, m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    o_steps: tl.tensor, x_steps: tl.tensor, t_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, q: tl.float64,
    limit: tl.float64, p: tl.float64, r: tl.float64, KIND: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    x_place = tile_place(row, row_sizes, x_rows, column, sizes, x_steps)
    t_place = tile_place(row, row_sizes, t_rows, column, sizes, t_steps)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    x = tl.load(input + x_place, mask=inside, other=0).to(ACC)
    t = tl.load(target + t_place, mask=inside, other=0).to(ACC)
    loss = loss_of(x, t, number_of(q, ACC), number_of(limit, ACC), number_of(p, ACC), number_of(r, ACC), KIND)
    tl.store(out + o_place, tl.where(m, loss, 0).to(out.dtype.element_ty), mask=inside)


@compiled
def _loss_sums(
    input: tl.tensor, target: tl.tensor, mask: tl.tensor, totals: tl.tensor, counts: tl.tensor, number: tl.tensor,
    sizes: tl.tensor, x_steps: tl.tensor, t_steps: tl.tensor, m_steps: tl.tensor, piece: tl.tensor, q: tl.float64,
    limit: tl.float64, p: tl.float64, r: tl.float64, KIND: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Program p adds the losses of piece p."""
    program = tl.program_id(0).to(INDEX)
    start = program * piece
    stop = tl.minimum(start + piece, number)
    total = tl.zeros((WIDE,), ACC)
    count = tl.zeros((WIDE,), tl.int32)
    for first in range(start, stop, WIDE):
        i = first + tl.arange(0, WIDE)
        inside = i < stop
        m = tl.load(mask + place(i, sizes, m_steps), mask=inside, other=0) != 0
        x = tl.load(input + place(i, sizes, x_steps), mask=inside, other=0).to(ACC)
        t = tl.load(target + place(i, sizes, t_steps), mask=inside, other=0).to(ACC)
        loss = loss_of(
            x, t, number_of(q, ACC), number_of(limit, ACC), number_of(p, ACC), number_of(r, ACC), KIND
        )
        total += tl.where(m, loss, 0)
        count += m.to(tl.int32)
    tl.store(totals + program, tl.sum(total.to(tl.float64), axis=0))
    tl.store(counts + program, tl.sum(count.to(tl.int64), axis=0))


@compiled
def _gradients(
    out: tl.tensor, grad: tl.tensor, input: tl.tensor, target: tl.tensor, mask: tl.tensor, rows: tl.tensor,
    row_sizes: tl.tensor, o_rows: tl.tensor, g_rows: tl.tensor, x_rows: tl.tensor, t_rows: tl.tensor,
    m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, g_steps: tl.tensor,
    x_steps: tl.tensor, t_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, q: tl.float64, limit: tl.float64,
    p: tl.float64, r: tl.float64, KIND: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    g_place = tile_place(row, row_sizes, g_rows, column, sizes, g_steps)
    x_place = tile_place(row, row_sizes, x_rows, column, sizes, x_steps)
    t_place = tile_place(row, row_sizes, t_rows, column, sizes, t_steps)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    g = tl.load(grad + g_place, mask=inside, other=0).to(ACC)
    x = tl.load(input + x_place, mask=inside, other=0).to(ACC)
    t = tl.load(target + t_place, mask=inside, other=0).to(ACC)
    if KIND == _DISTANCE:
        d = x - t
        edge = number_of(limit, ACC)
        steep = number_of(p, ACC)
        double = 2 * number_of(q, ACC)
        slope = tl.where(double == 0, 0, double * d)  # infinite distances have the slope 0 there, not NaN
        slope = tl.where(d > edge, steep, tl.where(d < -edge, -steep, slope))
    elif KIND == _LOGITS:
        e = tl.exp(-tl.abs(x))
        slope = tl.where(x < 0, e, 1) / (1 + e) - t
    else:
        least = number_of(1e-12, ACC)
        spread = (1 - x) * x
        slope = (x - t) / tl.where(spread < least, least, spread)
    tl.store(out + o_place, tl.where(m, g * slope, 0).to(out.dtype.element_ty), mask=inside)
