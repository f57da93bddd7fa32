r"""Cross entropy of labels over the specified classes: one program takes whole positions.

.. math:: \ell = \log \sum_c m_c e^{x_c} - (1 - \varepsilon)\, x_y - \varepsilon\, \bar x, \qquad
          \frac{\partial \ell}{\partial x_c} = m_c \left(e^{x_c - L} - (1 - \varepsilon) [c = y]
          - \frac{\varepsilon}{n}\right)

with the logsumexp :math:`L`. The logits of a position are walked as those of a softmax (largest entry, sum of the
powers), once more if labels are smoothed; the loss is written next to the logsumexp. The gradient is one pass, for
which the positions need not be whole.

Legend: x logits, m mask, y label, g gradient of the losses, n the logsumexp ("normalizer"), s share of the smoothing.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cross_entropy import class_dim
from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.runs import number_of
from maskgrad.kernels.cuda.tiles import place, reduction, table
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import masked_count
from maskgrad.kernels.softmax.cuda import largest_and_sum


def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """As in the reference, but that a label that is no class has the loss NaN."""
    dim = class_dim(input)
    wide = torch.float32 if input.dtype in HALVES else input.dtype
    loss, normalizer = (torch.empty(labels.shape, dtype=wide, device=input.device) for _ in range(2))
    tensors = (
        input.detach(), mask.view(torch.int8), *(x.unsqueeze(dim).expand(input.shape) for x in (labels, loss))
    )  # fmt: skip
    reduction(
        _cross_entropy, table(tensors, (dim,), whole=True), tensors, (normalizer,), float(smoothing), walked=2,
        SMOOTHED=smoothing != 0, ACC=precision(input.dtype),
    )  # fmt: skip
    return loss, normalizer


def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    dim, out = class_dim(input), torch.empty_like(input, requires_grad=False)
    share = normalizer
    if smoothing:
        share = smoothing / masked_count(mask, (dim,), False).clamp(min=1).to(normalizer.dtype)
    few = (x.detach().unsqueeze(dim).expand(input.shape) for x in (labels, grad, normalizer, share))
    tensors = input.detach(), out, mask.view(torch.int8), *few
    reduction(
        _gradient, table(tensors, (dim,)), tensors, (), float(smoothing), walked=3, SMOOTHED=smoothing != 0,
        ACC=precision(input.dtype),
    )  # fmt: skip
    return out


@compiled
def _cross_entropy(
    input: tl.tensor, mask: tl.tensor, labels: tl.tensor, loss: tl.tensor, normalizer: tl.tensor, kept: tl.tensor,
    kept_sizes: tl.tensor, x_kept: tl.tensor, m_kept: tl.tensor, y_kept: tl.tensor, n_kept: tl.tensor,
    reduced: tl.tensor, sizes: tl.tensor, x_steps: tl.tensor, m_steps: tl.tensor, smoothing: tl.float64,
    SMOOTHED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    x_row = place(k, kept_sizes, x_kept)
    m_row = place(k, kept_sizes, m_kept)[:, None]
    n_row = place(k, kept_sizes, n_kept)
    found = largest_and_sum(
        input, mask, x_row[:, None], m_row, (k < kept)[:, None], reduced, sizes, x_steps, m_steps, True, ACC, KEPT,
        REDUCED,
    )  # fmt: skip
    n = found[0] + tl.log(found[1].to(ACC))
    n = tl.where(tl.abs(n) < float("inf"), n, float("nan"))  # inf - inf, as in torch
    y = tl.load(labels + place(k, kept_sizes, y_kept), mask=k < kept, other=-1).to(INDEX)
    named = (y >= 0) & (y < reduced)
    picked = tl.load(input + x_row + place(tl.where(named, y, 0), sizes, x_steps), mask=named, other=0).to(
        ACC
    )
    result = n - picked
    if SMOOTHED:
        total = tl.zeros((KEPT, REDUCED), tl.float64)
        number = tl.zeros((KEPT, REDUCED), tl.int32)
        for first in range(0, reduced, REDUCED):
            c = first + tl.arange(0, REDUCED)
            inside = (k < kept)[:, None] & (c < reduced)[None, :]
            m = tl.load(mask + m_row + place(c, sizes, m_steps)[None, :], mask=inside, other=0) != 0
            x = tl.load(input + x_row[:, None] + place(c, sizes, x_steps)[None, :], mask=inside, other=0)
            total += tl.where(m, x.to(tl.float64), 0)
            number += m.to(tl.int32)
        mean = (tl.sum(total, axis=1) / tl.maximum(tl.sum(number.to(tl.int64), axis=1), 1)).to(ACC)
        result = n - number_of(1 - smoothing, ACC) * picked - number_of(smoothing, ACC) * mean
    result = tl.where(named, result, float("nan"))
    present = found[2] > 0
    tl.store(loss + n_row, tl.where(present, result, 0), mask=k < kept)
    tl.store(normalizer + n_row, tl.where(present, n, 0), mask=k < kept)


@compiled
def _gradient(
    input: tl.tensor, out: tl.tensor, mask: tl.tensor, labels: tl.tensor, grad: tl.tensor, normalizer: tl.tensor,
    share: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, x_kept: tl.tensor, o_kept: tl.tensor, m_kept: tl.tensor,
    y_kept: tl.tensor, g_kept: tl.tensor, n_kept: tl.tensor, s_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor,
    x_steps: tl.tensor, o_steps: tl.tensor, m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor,
    smoothing: tl.float64, SMOOTHED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    """Program p writes piece p % pieces of the positions KEPT * (p // pieces), ... ."""
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    x_row = place(k, kept_sizes, x_kept)[:, None]
    o_row = place(k, kept_sizes, o_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    y = tl.load(labels + place(k, kept_sizes, y_kept), mask=k < kept, other=-1).to(INDEX)[:, None]
    g = tl.load(grad + place(k, kept_sizes, g_kept), mask=k < kept, other=0).to(ACC)[:, None]
    n = tl.load(normalizer + place(k, kept_sizes, n_kept), mask=k < kept, other=0).to(ACC)[:, None]
    chosen = 1 - number_of(smoothing, ACC)
    s = n
    if SMOOTHED:
        s = tl.load(share + place(k, kept_sizes, s_kept), mask=k < kept, other=0).to(ACC)[:, None]
    for first in range(start, stop, REDUCED):
        c = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (c < stop)[None, :]
        m = tl.load(mask + m_row + place(c, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        x = tl.load(input + x_row + place(c, sizes, x_steps)[None, :], mask=inside, other=0).to(ACC)
        slope = tl.exp(x - n) - tl.where(c[None, :] == y, chosen, 0)
        if SMOOTHED:
            slope = slope - s
        result = tl.where(m, g * slope, 0)
        tl.store(
            out + o_row + place(c, sizes, o_steps)[None, :], result.to(out.dtype.element_ty), mask=inside
        )
