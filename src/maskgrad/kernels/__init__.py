"""Kernels: plain tensors in, plain tensors out; each with one schema and several bodies.

``schemas.py`` is the table of contents, ``selection.py`` decides which body runs, ``reference/`` says what is computed,
``cpu/`` computes it fast. Importing this package imports neither Numba nor anything compiled.

In the reductions, ``values`` and ``mask`` have one shape (``mask`` may be an expanded view), ``dim`` lists the reduced
dimensions (the empty tuple reduces nothing), and what lies under the mask influences neither results nor gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels import reference, schemas
from maskgrad.kernels.reference.coalescing import REDUCTIONS
from maskgrad.kernels.segments import (
    segment_extremum,
    segment_softmax,
    segment_softmax_backward,
    segment_spread,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.selection import compiled, kernels_in_use, runs_on_cpu, use_kernels, why

__all__ = [
    "adagrad_rows_",
    "kernels_in_use",
    "masked_count",
    "masked_filling",
    "masked_mean",
    "masked_sum",
    "merge_rows",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sgd_rows_",
    "sort_rows",
    "use_kernels",
    "why",
]

schemas.register()
_ops = torch.ops.maskgrad


def masked_sum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of the specified entries (0 where there is none), and their number (int64).

    Equal to ``torch.sum(torch.where(mask, values, 0), dim, keepdim, dtype=dtype)``; dtypes are those of ``torch.sum``.
    """
    _check_mask(values, mask)
    if runs_on_cpu("masked_sum", values, mask):
        return _ops.masked_sum(values, mask, dim, keepdim, dtype)  # type: ignore[no-any-return]
    return reference.masked_sum(values, mask, dim, keepdim, dtype)


def masked_mean(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of the specified entries, and their number; where there is none, value 0 and gradient exactly 0."""
    _check_mask(values, mask)
    if runs_on_cpu("masked_mean", values, mask):
        return _ops.masked_mean(values, mask, dim, keepdim, dtype)  # type: ignore[no-any-return]
    return reference.masked_mean(values, mask, dim, keepdim, dtype)


def masked_count(mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """How many entries are specified (int64)."""
    _check_mask(mask, mask)
    if runs_on_cpu("masked_count", mask):
        return _ops.masked_count(mask, dim, keepdim)  # type: ignore[no-any-return]
    return reference.masked_count(mask, dim, keepdim)


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """``torch.where(mask, values, filler)`` with a number of the category of ``values``; any order of derivatives."""
    if runs_on_cpu("masked_filling", values, mask):
        return compiled("masked_filling", values, mask, filler)  # type: ignore[no-any-return]
    return reference.masked_filling(values, mask, filler)


def merge_rows(indices: Tensor, values: Tensor, num_rows: int, reduce: str = "sum") -> tuple[Tensor, Tensor]:
    """Merge rows of ``values`` (n, *row) that share an index: distinct ``indices``, ascending (m,), and rows (m, *row).

    ``reduce`` is ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``. Sums are rounded once: halves are merged in float32,
    float32 in float64, integers in int64. Deterministic; differentiable in ``values`` to any order.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"merge_rows(): reduce must be one of {', '.join(REDUCTIONS)}; got {reduce!r}")
    if reduce == "mean" and not (values.is_floating_point() or values.is_complex()):
        raise TypeError(
            f"merge_rows(): the mean of {values.dtype} has no such dtype; convert values to a float first"
        )
    _check_rows(indices, values)
    if runs_on_cpu("merge_rows", values, indices):
        return _ops.merge_rows(indices, values, num_rows, reduce)  # type: ignore[no-any-return]
    return reference.merge_rows(indices, values, num_rows, reduce)


@torch.no_grad()
def adagrad_rows_(
    param: Tensor,
    state_sum: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool = False,
) -> None:
    """One Adagrad step, in place, on the rows ``indices`` (n,) of ``param`` with gradients ``values`` (n, *row).

    Rows that occur several times are merged first; ``lr`` is already decayed; other rows keep parameter and
    state bit for bit.
    """
    _check_rows(indices, values)
    fast = runs_on_cpu("adagrad_rows_", param, state_sum, indices, values)
    body = _ops.adagrad_rows_ if fast else reference.adagrad_rows_
    body(param, state_sum, indices, values, lr=lr, weight_decay=weight_decay, eps=eps, maximize=maximize)


@torch.no_grad()
def sgd_rows_(
    param: Tensor,
    momentum_buffer: Tensor | None,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: Tensor | None = None,
) -> None:
    """One SGD step, in place, on the rows ``indices`` (n,) of ``param`` with gradients ``values`` (n, *row).

    ``first_step`` (num_rows,), Boolean, marks the rows whose buffer has not been started: it then becomes the
    gradient itself, without dampening, as in ``torch.optim.SGD``, and the mark is cleared.
    """
    _check_rows(indices, values)
    fast = runs_on_cpu("sgd_rows_", param, momentum_buffer, indices, values, first_step)
    body = _ops.sgd_rows_ if fast else reference.sgd_rows_
    body(
        param, momentum_buffer, indices, values, lr=lr, momentum=momentum, dampening=dampening,
        weight_decay=weight_decay, nesterov=nesterov, maximize=maximize, first_step=first_step,
    )  # fmt: skip


def _check_mask(values: Tensor, mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be a Boolean tensor (True = specified); got {mask.dtype}; convert with mask.bool()"
        )
    if values.shape != mask.shape:
        raise ValueError(
            f"mask must have the shape of values, {tuple(values.shape)}; got {tuple(mask.shape)}; "
            "expand it with mask.expand_as(values)"
        )


def _check_rows(indices: Tensor, values: Tensor) -> None:
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise TypeError(f"indices must be a 1-D int64 tensor; got {indices.ndim}-D {indices.dtype}")
    if values.ndim < 1 or values.shape[0] != indices.shape[0]:
        raise ValueError(
            f"values must have one row for each of {indices.shape[0]} indices; got {tuple(values.shape)}"
        )
