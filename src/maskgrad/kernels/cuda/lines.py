r"""Straight lines through the specified entries, and the sums for the derivatives of standardizing.

.. math:: y = (x - c)\,s\,w + b, \qquad \bar x = \bar y\,w\,s + (x - c)\,d + o, \qquad
          \sum m\,\bar y f, \quad \sum m\,\bar y f\,(x - c)

All but :math:`x` and :math:`\bar y` are constants of a group or parameters: they are read in place, by strides
that are 0 where they are broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import Accumulator, reduce, totals, write


def line(
    values: Tensor, mask: Tensor, center: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``(v - c) s w + b`` where the mask holds, else 0, in the type and layout of ``values``."""
    given = [x for x in (weight, bias) if x is not None]
    return _written(_line, values, mask, center, scale, *given, kind=_kind(True, weight, bias))


def blend(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    center: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    slope: Tensor,
    offset: Tensor,
) -> Tensor:
    """``g w s + (v - c) d + o`` where the mask holds, else 0, in the type and layout of ``values``."""
    given = [] if weight is None else [weight]
    return _written(
        _blend, values, mask, grad, center, scale, slope, offset, *given, kind=_kind(True, weight)
    )


def pair_sums(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    center: Tensor,
    dim: Sequence[int],
    factor: Tensor | None = None,
    both: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sums of ``g`` (times ``f``, for ``both``) and of ``g f (v - c)`` over ``dim``, which are kept.

    Their type is that of ``center``.
    """
    given = [x.expand(values.shape) for x in (grad, center, factor) if x is not None]
    found, view = reduce(_PAIRS, mask, (values, *given), dim, (torch.float64,) * 2, kind=_kind(both, factor))
    first, second = (x.to(center.dtype) for x in totals(found, view, True))
    return first, second


def _written(of: object, values: Tensor, mask: Tensor, *others: Tensor, kind: int) -> Tensor:
    return write(of, torch.empty_like(values, requires_grad=False), mask, values, *others, kind=kind)


def _kind(first: bool, *given: Tensor | None) -> int:
    """Constant with one bit for each argument that is present."""
    return first + sum(2 << i for i, x in enumerate(given) if x is not None)


@compiled
def _line(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Of v, c, s, and w and b if present."""
    y = (x[0] - x[1]) * x[2]
    if KIND & 2:
        y = y * x[3]
    if KIND & 4:
        y = y + x[len(x) - 1]
    return y


@compiled
def _blend(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Of v, g, c, s, d, o, and w if present."""
    g = x[1] * x[3]
    if KIND & 2:
        g = g * x[6]
    return g + (x[0] - x[2]) * x[4] + x[5]


@compiled
def start_sums(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """Two sums."""
    return tl.zeros((ROWS, COLUMNS), ACC), tl.zeros((ROWS, COLUMNS), ACC)


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """Of v, g, c, and f if present."""
    g = x[1]
    d = x[0] - x[2]
    if KIND & 2:
        if KIND & 1:
            g = g * x[3]
        else:
            d = d * x[3]
    return state[0] + tl.where(there, g, 0), state[1] + tl.where(there, g * d, 0)


@compiled
def finish_sums(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Sum both results over the threads, in float64."""
    return tl.sum(state[0].to(tl.float64), axis=1), tl.sum(state[1].to(tl.float64), axis=1)


_PAIRS = Accumulator(start_sums, _step, finish_sums)
