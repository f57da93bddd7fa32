"""Extrema of the specified entries and their positions: which body runs, and the derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, REDUCIBLE, Kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.reference import extrema as reference
from maskgrad.kernels.reference.reductions import HALVES
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_extremum", "masked_extremum_spread", "masked_position"]


def masked_extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """The largest, or smallest, specified entry, and whether there is one; equals share its gradient."""
    check_mask(values, mask)
    if runs_compiled("masked_extremum", values, mask):
        best, ties = compiled("masked_extremum", values, mask, dim, keepdim, largest)
        return best, ties > 0
    return reference.shared_extremum(values, mask, dim, keepdim, largest)


def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """Where along ``dim`` the first extremum is (0 where there is no entry), and whether there is an entry."""
    check_mask(values, mask)
    if runs_compiled("masked_position", values, mask):
        return compiled("masked_position", values.detach(), mask, dim, keepdim, largest)  # type: ignore[no-any-return]
    return reference.masked_position(values, mask, dim, keepdim, largest)


def masked_extremum_spread(share: Tensor, values: Tensor, best: Tensor, mask: Tensor) -> Tensor:
    """``share`` where a specified entry attains ``best``, 0 elsewhere; both broadcast to the values."""
    if runs_compiled("masked_extremum_spread", values, share, best, mask):
        return compiled("masked_extremum_spread", share, values, best, mask)  # type: ignore[no-any-return]
    return reference.masked_extremum_spread(share, values, best, mask)


def _save_extremum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, _ = inputs
    ctx.save_for_backward(values, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _extremum_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    values, mask, best, ties = ctx.saved_tensors
    values, best = values.detach(), best.detach()
    wide = grad.to(torch.float32) if grad.dtype in HALVES else grad
    # A specified NaN equals nothing: torch's gradient is then 0 / 0 at every entry.
    share = torch.where(best != best, torch.nan, wide / ties.clamp(min=1)).to(grad.dtype)
    share, best = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (share, best))
    return masked_extremum_spread(share, values, best, mask), None, None, None, None


def _save_spread(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    share, values, best, mask = inputs
    ctx.shape, ctx.dtype = share.shape, share.dtype
    ctx.save_for_backward(values, best, mask)


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    values, best, mask = ctx.saved_tensors
    hit = mask & ((values == best) | (best != best))
    wide = torch.where(hit, grad, 0).to(torch.float32 if grad.dtype in HALVES else grad.dtype)
    return wide.sum_to_size(ctx.shape).to(ctx.dtype), None, None, None


KERNELS = (
    Kernel(
        "masked_extremum", "extrema",
        "(Tensor values, Tensor mask, int[] dim, bool keepdim, bool largest) -> (Tensor, Tensor)", REDUCIBLE, 32_768,
        "largest or smallest specified entry, and how many attain it",
        backward=_extremum_backward, save=_save_extremum,
    ),
    Kernel(
        "masked_extremum_spread", "extrema", "(Tensor share, Tensor values, Tensor best, Tensor mask) -> Tensor",
        FLOATS, 32_768, "the gradient of an extremum, shared among those that attain it", leading=1,
        backward=_spread_backward, save=_save_spread,
    ),
    Kernel(
        "masked_position", "extrema",
        "(Tensor values, Tensor mask, int dim, bool keepdim, bool largest) -> (Tensor, Tensor)", REDUCIBLE, 32_768,
        "position of the first largest or smallest specified entry, and whether there is one",
    ),
)  # fmt: skip
