"""Extrema of the specified entries, their positions, and their gradients, in ordinary PyTorch.

A filler of -inf under the mask cannot be told from a specified -inf, neither in the gradient (which is shared among
ties) nor as a position. So the value of the extremum comes from filling, and ties and positions are looked for among
the specified entries only. An empty slice gives the value that never wins, position 0. NaN wins, as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import cleared, filled
from maskgrad.kernels.kernel import HALVES, REDUCIBLE, apply_of, kernel
from maskgrad.kernels.layout import unrepeated
from maskgrad.kernels.smallest import any_of, is_complete
from maskgrad.mode import forward_mode_is_active, mode

#: Columns that PyTorch reduces at once.
COLUMNS = 32


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
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, bool largest) -> (Tensor, Tensor)",
    REDUCIBLE,
    least=None,
    fuses=True,
    check=check_mask,
)
def masked_extremum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """The largest, or smallest, specified entry, and whether there is one; ties share its gradient equally."""
    dim = tuple(dim)
    if not dim:
        return filled(values, mask, lowest(values.dtype, largest)), mask.clone()
    present = any_of(mask, dim, keepdim)
    if mode() != "eager":
        # A Function with a forward-mode derivative could not be compiled; torch's own shares with masked ties.
        compute: Any = _extremum if forward_mode_is_active() else _SharedExtremum.apply
    elif values.requires_grad and torch.is_grad_enabled():
        compute = _shared_extremum
    else:
        compute = _extremum
        values, mask, _ = unrepeated(values, mask, dim)
    best = compute(values, mask, dim, largest)
    return best if keepdim else best.squeeze(dim), present


masked_extremum.derive_through_reference()


@kernel(
    "(Tensor values, Tensor mask, int dim, bool keepdim, bool largest) -> (Tensor, Tensor)",
    REDUCIBLE,
    least=None,
    fuses=True,
    check=check_mask,
)
def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """Return the position of the first extremum along ``dim`` (0 for an empty slice), and whether there is an entry."""
    present = any_of(mask, (dim,), keepdim)
    values = values.detach()
    if mode() == "eager":
        values, mask, _ = unrepeated(values, mask, (dim,))
    safe = filled(values, mask, lowest(values.dtype, largest))
    index = (safe.max if largest else safe.min)(dim, keepdim=True).indices
    # The filler wins only if all specified entries equal it: then the first of these is the position.
    is_specified = mask.gather(dim, index)
    if not is_complete(is_specified):
        index = torch.where(is_specified, index, mask.to(torch.uint8).argmax(dim, keepdim=True))
    return index if keepdim else index.squeeze(dim), present


def _extremum(values: Tensor, mask: Tensor, dim: tuple[int, ...], largest: bool) -> Tensor:
    """The extremum, dimensions kept."""
    safe = filled(values, mask, lowest(values.dtype, largest))
    return best_of(safe, dim, largest)


def best_of(x: Tensor, dim: tuple[int, ...], largest: bool) -> Tensor:
    """``amax`` or ``amin``, dimensions kept; of a few columns, rows side by side.

    PyTorch reduces fewer than 32 columns value by value: a step with four poolings of 64 x 200 x 8 gains 8 %.
    """
    function: Any = torch.amax if largest else torch.amin
    if len(dim) == 1 and x.ndim > 1 and mode() == "eager" and x.is_contiguous():
        place = dim[0] % x.ndim
        rows = COLUMNS // max(x.stride(place), 1)
        if 1 < rows < COLUMNS and x.shape[place] % rows == 0 and x.numel():
            x = function(x.unflatten(place, (-1, rows)), place)
    found: Tensor = function(x, dim, True)
    return found


class _SharedExtremum(torch.autograd.Function):
    """Extremum over ``dim`` (kept) whose gradient is shared equally among the specified entries that attain it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor, dim: tuple[int, ...], largest: bool) -> Tensor:
        return _extremum(values, mask, dim, largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, mask, ctx.dim, ctx.largest = inputs
        ctx.save_for_backward(values, mask, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        values, mask, best = ctx.saved_tensors
        values, best = values.detach(), best.detach()
        # As numbers: 524,288 values are compared to Booleans in 193 µs, and these intersected with the mask in 298.
        hit = cleared(values.clone().ge_(best) if ctx.largest else values.clone().le_(best), mask)
        wide = grad.float() if grad.dtype in HALVES else grad
        # A specified NaN equals nothing: as in torch, the gradient is then 0 / 0 at every entry.
        number = hit.sum(ctx.dim, True, dtype=wide.dtype).clamp(min=1)
        share = wide / torch.where(best == best, number, torch.nan)
        return cleared(hit, mask, share).to(grad.dtype), None, None, None


_shared_extremum = apply_of(_SharedExtremum)
