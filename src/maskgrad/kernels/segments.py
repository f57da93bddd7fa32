"""Segments of a list of entries: which body runs, and the derivatives of any order.

``pointers`` (g + 1,) and, where the entries of a segment do not lie together, ``order`` (n,) describe the segments as
in :mod:`maskgrad.kernels.reference.segments`; each has at least one entry. Sum and spread are each other's adjoint,
and the derivatives of the others are written with these two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import reference
from maskgrad.kernels.selection import compiled, runs_on_cpu

__all__ = [
    "DERIVATIVES",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sort_rows",
]


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of equal ``indices`` (n,) in [0, num_rows): pointers, stable order, distinct indices, ascending."""
    if runs_on_cpu("sort_rows", indices):
        return compiled("sort_rows", indices, num_rows)  # type: ignore[no-any-return]
    return reference.sort_rows(indices, num_rows)


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The sum of each segment, (n, *dense) -> (g, *dense), in ``dtype``, else that of the values (halves: float32)."""
    if runs_on_cpu("segment_sum", values, pointers, order):
        return compiled("segment_sum", values, pointers, order, dtype)  # type: ignore[no-any-return]
    return reference.segment_sum(values, pointers, order, dtype)


def segment_spread(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """Give each of ``number`` entries what its segment has, (g, *dense) -> (n, *dense)."""
    sample = values.new_empty(()).expand(number)  # what is written decides whether the kernel pays
    if runs_on_cpu("segment_spread", sample, values, pointers, order):
        return compiled("segment_spread", values, pointers, order, number)  # type: ignore[no-any-return]
    return reference.segment_spread(values, pointers, order, number)


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """The largest or smallest entry of each segment, NaN if it has one; ties share the gradient evenly."""
    if runs_on_cpu("segment_extremum", values, pointers, order):
        return compiled("segment_extremum", values, pointers, order, largest)  # type: ignore[no-any-return]
    return reference.segment_extremum(values, pointers, order, largest)


def segment_softmax(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, logarithm: bool = False
) -> Tensor:
    """Softmax within each segment, or its logarithm; halves are rounded once, at the end."""
    if runs_on_cpu("segment_softmax", values, pointers, order):
        return compiled("segment_softmax", values, pointers, order, logarithm)  # type: ignore[no-any-return]
    return reference.segment_softmax(values, pointers, order, logarithm)


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    """The gradient of the entries from that of their (logarithmic) softmax ``output``."""
    if runs_on_cpu("segment_softmax_backward", output, grad, pointers, order):
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


#: For each operator: its backward, and what it saves for it.
DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "segment_sum": (_sum_backward, _save_sum),
    "segment_spread": (_spread_backward, _save_spread),
    "segment_extremum": (_extremum_backward, _save_extremum),
    "segment_softmax": (_softmax_backward, _save_softmax),
    "segment_softmax_backward": (_softmax_backward_twice, _save_softmax_backward),
}
