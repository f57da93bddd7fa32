"""Segments of a list of entries: which body runs, and the derivatives of any order.

``pointers`` (g + 1,) and, where the entries of a segment do not lie together, ``order`` (n,) describe the segments as
in :mod:`maskgrad.kernels.reference.segments`; each has at least one entry. Sum and spread are each other's adjoint,
and the derivatives of the others are written with these two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import segments as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = [
    "KERNELS",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sort_rows",
]


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of equal ``indices`` (n,) in [0, num_rows): pointers, stable order, distinct indices, ascending."""
    if runs_compiled("sort_rows", indices):
        return compiled("sort_rows", indices, num_rows)  # type: ignore[no-any-return]
    return reference.sort_rows(indices, num_rows)


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The sum of each segment, (n, *dense) -> (g, *dense), in ``dtype``, else that of the values (halves: float32)."""
    if runs_compiled("segment_sum", values, pointers, order):
        return compiled("segment_sum", values, pointers, order, dtype)  # type: ignore[no-any-return]
    return reference.segment_sum(values, pointers, order, dtype)


def segment_spread(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """Give each of ``number`` entries what its segment has, (g, *dense) -> (n, *dense)."""
    sample = values.new_empty(()).expand(number)  # what is written decides whether the kernel pays
    if runs_compiled("segment_spread", sample, values, pointers, order):
        return compiled("segment_spread", values, pointers, order, number)  # type: ignore[no-any-return]
    return reference.segment_spread(values, pointers, order, number)


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """The largest or smallest entry of each segment, NaN if it has one; ties share the gradient evenly."""
    if runs_compiled("segment_extremum", values, pointers, order):
        return compiled("segment_extremum", values, pointers, order, largest)  # type: ignore[no-any-return]
    return reference.segment_extremum(values, pointers, order, largest)


def segment_softmax(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, logarithm: bool = False
) -> Tensor:
    """Softmax within each segment, or its logarithm; halves are rounded once, at the end."""
    if runs_compiled("segment_softmax", values, pointers, order):
        return compiled("segment_softmax", values, pointers, order, logarithm)  # type: ignore[no-any-return]
    return reference.segment_softmax(values, pointers, order, logarithm)


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    """The gradient of the entries from that of their (logarithmic) softmax ``output``."""
    if runs_compiled("segment_softmax_backward", output, grad, pointers, order):
        return compiled("segment_softmax_backward", grad, output, pointers, order, logarithm)  # type: ignore[no-any-return]
    return reference.segment_softmax_backward(grad, output, pointers, order, logarithm)


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.number, ctx.dtype = values.shape[0], values.dtype
    ctx.save_for_backward(pointers, order)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    pointers, order = ctx.saved_tensors
    return segment_spread(grad.to(ctx.dtype), pointers, order, ctx.number), None, None, None


def _save_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.dtype = values.dtype
    ctx.save_for_backward(pointers, order)


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return segment_sum(grad, *ctx.saved_tensors).to(ctx.dtype), None, None, None


def _save_extremum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _extremum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    values, best, pointers, order = ctx.saved_tensors
    values, best = values.detach(), best.detach()
    largest = segment_spread(best, pointers, order, values.shape[0])
    hit = (values == largest) | (values.isnan() & largest.isnan())
    ties = segment_sum(hit.to(torch.float32), pointers, order)
    share = segment_spread((grad / ties).to(values.dtype), pointers, order, values.shape[0])
    return torch.where(hit, share, 0), None, None, None


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, pointers, order, ctx.logarithm = inputs
    ctx.save_for_backward(output, pointers, order)


def _softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    output, pointers, order = ctx.saved_tensors
    return segment_softmax_backward(grad, output, pointers, order, ctx.logarithm), None, None, None


def _save_softmax_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, soft, pointers, order, ctx.logarithm = inputs
    ctx.save_for_backward(grad, soft, pointers, order)


def _softmax_backward_twice(ctx: Any, again: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    """With the sum S of a segment: of y (g - S(y g)), or of g - exp(y) S(g), in g and in y."""
    grad, soft, pointers, order = ctx.saved_tensors

    def total(x: Tensor) -> Tensor:
        return segment_spread(segment_sum(x, pointers, order), pointers, order, x.shape[0])

    if ctx.logarithm:
        powers = soft.exp()
        of_grad, of_soft = again - total(powers * again), -again * powers * total(grad)
    else:
        of_grad = soft * (again - total(soft * again))
        of_soft = again * (grad - total(soft * grad)) - grad * total(soft * again)
    return of_grad.to(grad.dtype), of_soft.to(soft.dtype), None, None, None


_MERGEABLE = FLOATS | {torch.int32, torch.int64}
_SEGMENTS = "Tensor pointers, Tensor? order"
KERNELS = (
    Kernel(
        "sort_rows", "segments", "(Tensor indices, SymInt num_rows) -> (Tensor, Tensor, Tensor)",
        frozenset((torch.int32, torch.int64)), 8_192, "rows that share an index become neighbours",
    ),
    Kernel(
        "segment_sum", "segments", f"(Tensor values, {_SEGMENTS}, ScalarType? dtype=None) -> Tensor",
        _MERGEABLE, 8_192, "sum of each segment of a list of entries", backward=_sum_backward, save=_save_sum,
    ),
    Kernel(
        "segment_spread", "segments", f"(Tensor values, {_SEGMENTS}, SymInt number) -> Tensor",
        _MERGEABLE, 8_192, "each entry gets what its segment has", backward=_spread_backward, save=_save_spread,
    ),
    Kernel(
        "segment_extremum", "segments", f"(Tensor values, {_SEGMENTS}, bool largest) -> Tensor",
        _MERGEABLE, 8_192, "largest or smallest entry of each segment",
        backward=_extremum_backward, save=_save_extremum,
    ),
    Kernel(
        "segment_softmax", "segments", f"(Tensor values, {_SEGMENTS}, bool logarithm) -> Tensor",
        FLOATS, 8_192, "softmax within each segment, or its logarithm",
        backward=_softmax_backward, save=_save_softmax,
    ),
    Kernel(
        "segment_softmax_backward", "segments",
        f"(Tensor grad, Tensor output, {_SEGMENTS}, bool logarithm) -> Tensor",
        FLOATS, 8_192, "its derivative", backward=_softmax_backward_twice, save=_save_softmax_backward,
    ),
)  # fmt: skip
