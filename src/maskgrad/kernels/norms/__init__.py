r"""Vector norms of the specified entries, and of segments, in ordinary PyTorch.

.. math:: \lVert x \rVert_p = \Bigl(\sum_{i: m_i} |x_i|^p\Bigr)^{1/p}, \qquad
          \lVert x \rVert_\infty = \max_{i: m_i} |x_i|, \qquad \lVert x \rVert_0 = \sum_{i: m_i} [x_i \ne 0]

.. math:: \frac{\partial \lVert x \rVert_1}{\partial x_i} = \operatorname{sgn} x_i, \qquad
          \frac{\partial \lVert x \rVert_2}{\partial x_i} = \frac{x_i}{\lVert x \rVert_2}, \qquad
          \frac{\partial \lVert x \rVert_\infty}{\partial x_i}
          = \frac{\operatorname{sgn} x_i}{k} \ \text{for the}\ k\ \text{entries that attain it}

At a zero the gradient is 0, as in PyTorch. Norms of segments have any order, inf and -inf included, for which

.. math:: \frac{\partial \lVert x \rVert_p}{\partial x_i}
          = \operatorname{sgn} x_i \, |x_i|^{p - 1} \, \lVert x \rVert_p^{1 - p}

Segments, which may be empty here, and shapes are those of :mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import filled
from maskgrad.kernels.invariant import as_rows, is_invariant
from maskgrad.kernels.kernel import FLOATS, kernel
from maskgrad.kernels.segments import Rows, segment_expand, segment_extremum, segment_sum, widened
from maskgrad.kernels.smallest import any_of
from maskgrad.mode import forward_mode_is_active


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, float ord) -> (Tensor, Tensor)",
    FLOATS,
    least=None,
    fuses=True,
    check=check_mask,
)
def masked_norm(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, ord: float = 2.0
) -> tuple[Tensor, Tensor]:
    """``torch.linalg.vector_norm`` of the specified entries, and whether there are any (Boolean).

    In an empty slice the value is 0, and the gradient exactly 0. ``ord`` is any number but -inf.
    """
    present = any_of(mask, dim, keepdim=True)
    # An entry of 0 does not contribute for ord >= 0, nor does inf for ord < 0. An empty slice of these becomes a vector
    # of ones, where every norm has finite derivatives.
    neutral = 0.0 if ord >= 0 else math.inf
    safe = filled(values, mask, neutral)
    if neutral:
        safe = filled(safe, present, 1.0)
    if is_invariant() and dim and values.ndim and ord not in (0, math.inf):  # which are exact
        rows, segments, placed = as_rows(safe, dim)
        norm = placed(segment_norm(rows, segments, float(ord)), keepdim).to(values.dtype)
    elif ord == 1 and dim:  # PyTorch's norm adds one by one, with fewer digits than its sum
        norm = safe.abs().sum(dim, keepdim=keepdim)
    elif dim or not values.ndim:
        norm = torch.linalg.vector_norm(safe, ord, dim, keepdim=keepdim)
    else:  # of each entry; torch takes an empty dim for all dimensions
        norm = torch.linalg.vector_norm(safe.unsqueeze(-1), ord, -1)
    present = present if keepdim or not dim else present.squeeze(dim)
    return torch.where(present, norm, 0), present


masked_norm.derive_through_reference()


def segment_norm(values: Tensor, rows: Rows, ord: float = 2.0) -> Tensor:
    """``torch.linalg.vector_norm`` of each segment, (n, *dense) -> (g, *dense); 0 where it is empty.

    ``ord`` is any float, inf and -inf included; half precision gives float32.
    """
    wide = widened(values)
    dtype = torch.promote_types(
        values.dtype.to_real() if values.is_complex() else values.dtype, torch.float32
    )
    if ord == 2:
        added = segment_sum((wide * wide.conj()).real if wide.is_complex() else wide * wide, rows)
        flat = added == 0
        return torch.where(flat, 0, torch.where(flat, 1, added).sqrt()).to(dtype)
    size = wide.abs()
    if ord in (math.inf, -math.inf):
        return _extreme_size(size, rows, ord > 0).to(dtype)
    if ord == 0:
        return segment_sum((size != 0).to(size.dtype), rows).to(dtype)
    if ord == 1:
        return segment_sum(size, rows).to(dtype)
    # Powers and roots are taken where they have a derivative; elsewhere it is 0, as in torch.
    nothing = size == 0
    neutral = 0.0 if ord > 0 else math.inf
    powers = torch.where(nothing, neutral, torch.where(nothing, 1, size) ** ord)
    added = segment_sum(powers, rows)
    empty = rows.count_for(added) == 0
    flat = added == 0 if ord > 0 else (added == 0) | added.isinf()
    plain = torch.where(empty, 0, added.detach() ** (1 / ord))
    return torch.where(flat, plain, torch.where(flat, 1, added) ** (1 / ord)).to(dtype)


def _extreme_size(size: Tensor, rows: Rows, largest: bool) -> Tensor:
    """The largest or smallest absolute value, exactly, with the gradient of the mean of the ties."""
    best = segment_extremum(size.detach(), rows, largest)
    best = torch.where(rows.count_for(best) == 0, 0, best)
    if not (size.requires_grad or forward_mode_is_active()):
        return best
    winner = segment_expand(best, rows)
    hit, broken = size.detach() == winner, winner.isnan()
    ties = segment_expand(segment_sum(hit.to(size.dtype), rows), rows)
    weight = torch.where(broken, 0, 1 / ties.clamp(min=1))
    picked = segment_sum(torch.where(hit | broken, size * weight, 0), rows)
    # An infinite winner has no rounding to correct.
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)
