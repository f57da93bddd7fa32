"""Extrema of the specified entries, their positions, and their gradients, in ordinary PyTorch.

A filler of -inf under the mask cannot be told from a specified -inf, neither in the gradient (which is shared among
ties) nor as a position. So the value of the extremum comes from filling, and ties and positions are looked for among
the specified entries only. An empty slice gives the value that never wins, position 0. NaN wins, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.segments import widened
from maskgrad.kernels.selection import can_read_values
from maskgrad.kernels.smallest import any_of


def lowest(dtype: torch.dtype, largest: bool) -> float | int | bool:
    """Value that never wins: the identity of maximum (of minimum if not ``largest``)."""
    if dtype.is_complex:
        raise RuntimeError(f"extrema are not defined for complex dtypes, got {dtype}")
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, bool largest, bool counts=True) -> (Tensor, Tensor)",
    REDUCIBLE,
    fuses=True,
    check=check_mask,
)
def masked_extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, largest: bool, counts: bool = True
) -> tuple[Tensor, Tensor]:
    """The largest, or smallest, specified entry, and the number of ties (int64; 0 for an empty slice).

    Without ``counts``, which a gradient needs, whether there is an entry.
    """
    if not dim:
        best = torch.where(mask, values, lowest(values.dtype, largest))
        return best, mask.to(torch.int64) if counts else mask.clone()
    best = _extremum(values, mask, dim, largest)
    if not counts:
        return best if keepdim else best.squeeze(dim), any_of(mask, dim, keepdim)
    winners = mask & ((values == best) | ((values != values) & (best != best)))
    return best if keepdim else best.squeeze(dim), winners.sum(dim, keepdim)


@kernel(
    "(Tensor grad, Tensor values, Tensor best, Tensor ties, Tensor mask) -> Tensor",
    FLOATS,
    fuses=True,
    leading=1,
)
def masked_extremum_backward(
    grad: Tensor, values: Tensor, best: Tensor, ties: Tensor, mask: Tensor
) -> Tensor:
    """``grad``, shared among the ``ties``, where a specified entry attains ``best``, else 0; they broadcast to values.

    A specified NaN equals nothing: all entries beside it get NaN, as torch divides by their number 0.
    """
    share = (widened(grad) / ties.clamp(min=1)).to(values.dtype)
    hit = torch.where(values == best, share, 0)
    return torch.where(mask, torch.where(best != best, torch.nan, hit), 0)


@kernel(
    "(Tensor values, Tensor mask, int dim, bool keepdim, bool largest) -> (Tensor, Tensor)",
    REDUCIBLE,
    fuses=True,
    check=check_mask,
)
def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """Return the position of the first extremum along ``dim`` (0 for an empty slice), and whether there is an entry."""
    values = values.detach()
    best = _extremum(values, mask, (dim,), largest)
    winners = mask & ((values == best) | (values != values))
    return winners.to(torch.uint8).argmax(dim, keepdim=keepdim), any_of(mask, (dim,), keepdim)


def shared_extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """The extremum, differentiable, and whether there is an entry; its gradient is shared among ties."""
    if not dim:
        return values, mask
    # A Function with a forward-mode derivative could not be compiled; torch's own shares with masked ties.
    # Where no gradient is needed, a Function costs as much as the extremum of a small tensor.
    recorded = values.requires_grad and torch.is_grad_enabled()
    if not torch.compiler.is_compiling() and (
        torch.autograd.forward_ad._current_level >= 0
        or not (recorded or torch._C._are_functorch_transforms_active())
    ):
        return _extremum(values, mask, dim, largest, keepdim), any_of(mask, dim, keepdim)
    best: Tensor | None = None
    if values.dtype not in HALVES and can_read_values(values, mask):  # PyTorch miscounts equal halves
        best = _unless_filler_wins(values, mask, dim, largest)
    if best is None:
        best = _SharedExtremum.apply(values, mask, dim, largest)  # type: ignore[no-untyped-call]
    return best if keepdim else best.squeeze(dim), any_of(mask, dim, keepdim)


def _extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], largest: bool, keepdim: bool = True
) -> Tensor:
    neutral = torch.where(mask, values, lowest(values.dtype, largest))
    return neutral.amax(dim, keepdim) if largest else neutral.amin(dim, keepdim)


def _unless_filler_wins(values: Tensor, mask: Tensor, dim: tuple[int, ...], largest: bool) -> Tensor | None:
    """The extremum with PyTorch's own derivative, None where it would give masked entries a gradient.

    Masked entries are filled with a value that never wins. Only if it did (all masked, or infinite), or a NaN did, ties
    could be miscounted; everywhere else this saves a Function, which costs three times as much as a small extremum.
    """
    best = _extremum(values, mask, dim, largest)
    if not best.numel():
        return None
    plain = best.detach()
    worst = plain.amin() if largest else plain.amax()
    beaten = worst > -math.inf if largest else worst < math.inf
    return best if beaten else None


class _SharedExtremum(torch.autograd.Function):
    """Extremum over ``dim`` (kept) whose gradient is shared equally among the specified entries that attain it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor, dim: tuple[int, ...], largest: bool) -> Tensor:
        return _extremum(values, mask, dim, largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, mask, ctx.dim, _ = inputs
        ctx.save_for_backward(values, mask, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        values, mask, best = ctx.saved_tensors
        values, best = values.detach(), best.detach()
        broken = best != best  # a specified NaN equals nothing: torch's gradient is then 0 / 0 at every entry
        hit = mask & ((values == best) | broken)
        wide = grad.float() if grad.dtype in HALVES else grad
        share = torch.where(broken, torch.nan, wide / hit.sum(ctx.dim, keepdim=True).clamp(min=1))
        return torch.where(hit, share.to(grad.dtype), 0), None, None, None


def extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """The largest, or smallest, specified entry, and whether there is one; ties share its gradient."""
    counts = values.requires_grad and torch.is_grad_enabled()
    found = masked_extremum.fast(values, mask, dim, keepdim, largest, counts)
    if found is not None:
        best, ties = found
        return best, ties > 0 if counts else ties
    return shared_extremum(values, mask, dim, keepdim, largest)


def _save_extremum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, *_ = inputs
    ctx.save_for_backward(values, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _extremum_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    values, mask, best, ties = ctx.saved_tensors
    grad, best, ties = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, best, ties))
    return masked_extremum_backward(grad, values, best, ties, mask), None, None, None, None, None


masked_extremum.derive(_save_extremum, _extremum_backward)
masked_extremum_backward.derive_through_reference()
