"""Scans: at a specified position, PyTorch's scan over the specified entries up to there.

An unspecified entry is skipped and stays unspecified. Positions from ``cummax`` and ``cummin`` refer to the
original tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.extrema import lowest
from maskgrad.mode import forward_mode_is_active, mode
from maskgrad.semantics.dimensions import as_dim, specified_last
from maskgrad.semantics.entries import HALVES, Entries, fill, filler_as
from maskgrad.semantics.facts import of_rule


def cumsum(input: Entries, dim: int, *, dtype: torch.dtype | None = None) -> Entries:
    """Running sum of the specified entries."""
    return Entries(fill(input, input.mask, 0).cumsum(dim, dtype=dtype), input.mask)


def cumprod(input: Entries, dim: int, *, dtype: torch.dtype | None = None) -> Entries:
    """Running product of the specified entries.

    Where gradients are recorded, they are moved to the back first, after ones. Ones among them would take part in
    the backward pass, in which every running product, possibly infinite, is multiplied by its gradient, here 0.
    """
    values, mask = input
    dim = as_dim(dim, values.ndim)
    if mode() == "eager" and not (values.requires_grad and torch.is_grad_enabled()):
        return Entries(fill(input, mask, 1).cumprod(dim, dtype=dtype), mask)
    order, rank = specified_last(mask, dim)
    safe = torch.where(mask, values, filler_as(values.dtype, 1)).gather(dim, order)
    return Entries(safe.cumprod(dim, dtype=dtype).gather(dim, rank), mask)


def _running_extremum(input: Entries, dim: int, largest: bool) -> Any:
    """Values and positions; entries under the mask never win, except at their own position.

    A specified entry equal to the filler wins at its own position: torch reports the last of ties.
    """
    filled = fill(input, input.mask, lowest(input.values.dtype, largest))
    found = torch.cummax(filled, dim) if largest else torch.cummin(filled, dim)
    kind: Any = type(found)
    return kind([Entries(part, input.mask) for part in found])


def cummax(input: Entries, dim: int) -> Any:
    """Running maximum of the specified entries, and its position in the original tensor."""
    return _running_extremum(input, dim, True)


def cummin(input: Entries, dim: int) -> Any:
    """Running minimum of the specified entries, and its position in the original tensor."""
    return _running_extremum(input, dim, False)


def decaying_sum(terms: Tensor, decay: Tensor, dim: int) -> Tensor:
    """S_i = terms_i + decay_i · S_(i+1): linear in the terms, in log(n) steps, without branches or divisions."""
    size, step = terms.shape[dim], 1
    while step < size:
        rest = size - step
        missing = torch.zeros_like(decay.narrow(dim, 0, step))
        terms = terms + decay * torch.cat([terms.narrow(dim, step, rest), missing], dim)
        decay = decay * torch.cat([decay.narrow(dim, step, rest), missing], dim)
        step *= 2
    return terms


class _LogCumSumExp(torch.autograd.Function):
    """log Σ_(i≤j) exp(x_i) over specified entries; its gradient is Σ_(j≥i) g_j exp(x_i − out_j).

    torch's own backward takes the logarithm of the gradient, so its second derivative is NaN wherever a gradient is
    0, as it is at every unspecified entry. This one is linear in the gradient. (It has no ``jvp``, because
    torch.compile traces no function that has one.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor, dim: int) -> Tensor:
        return torch.where(mask, values, float("-inf")).logcumsumexp(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, mask, ctx.dim = inputs
        ctx.save_for_backward(values, mask, output)
        ctx.save_for_forward(values, mask, output)

    @staticmethod
    def _weights(ctx: Any) -> tuple[Tensor, Tensor]:
        """exp(x_i − out_i), and exp(out_i − out_(i+1)) with a last one that has no effect."""
        values, mask, out = ctx.saved_tensors
        if out.dtype in HALVES:
            values, out = values.float(), out.float()
        # selected before and after the difference: garbage and infinite sums must not interfere
        difference = torch.where(mask, values, 0) - torch.where(mask, out, 0)
        following = torch.cat(
            [out.narrow(ctx.dim, 1, out.shape[ctx.dim] - 1), out.narrow(ctx.dim, 0, 1)], ctx.dim
        )
        # equal sums may be infinite
        step = torch.where(out == following, 0, out - following)
        last = torch.ones_like(mask.narrow(ctx.dim, 0, 1))
        inner = torch.zeros_like(mask.narrow(ctx.dim, 1, mask.shape[ctx.dim] - 1))
        step = torch.where(torch.cat([inner, last], ctx.dim), 0, step)
        return difference.exp(), step.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        _, mask, out = ctx.saved_tensors
        share, decay = _LogCumSumExp._weights(ctx)
        # the second derivative has gradients from unspecified results, which are intermediate steps
        total = decaying_sum(grad.to(share.dtype), decay.conj(), ctx.dim)
        return torch.where(mask, total * share.conj(), 0).to(out.dtype), None, None


class _LogCumSumExpForward(_LogCumSumExp):
    """The same in forward mode: out'_j = Σ_(i≤j) exp(x_i − out_j) x'_i."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        mask, out = ctx.saved_tensors[1:]
        dim = ctx.dim
        share, decay = _LogCumSumExp._weights(ctx)
        back = decay.flip(dim)
        back = torch.cat([back.narrow(dim, 1, back.shape[dim] - 1), back.narrow(dim, 0, 1)], dim)
        terms = torch.where(mask, tangent.to(share.dtype) * share, 0)
        return decaying_sum(terms.flip(dim), back, dim).flip(dim).to(out.dtype)


def logcumsumexp(input: Entries, dim: int) -> Entries:
    """Running log-sum-exp of the specified entries."""
    values, mask = input
    dim = as_dim(dim, values.ndim)
    inexact = values.is_floating_point() or values.is_complex()
    if values.ndim == 0 or values.numel() == 0 or not inexact:  # torch refuses integers
        return Entries(values.logcumsumexp(dim), mask)
    function: Any = _LogCumSumExpForward if forward_mode_is_active() else _LogCumSumExp
    result: Tensor = function.apply(values, mask, dim)
    return Entries(result, mask)


GRADIENTS = {
    cumsum: "the sum of the gradients from there on",
    cumprod: "torch's on the specified entries",
    cummax: "to the entry that attains the maximum",
    cummin: "to the entry that attains the minimum",
    logcumsumexp: "the gradients from there on, weighted by exp(x - result)",
}
OPERATIONS = tuple(
    of_rule(rule, "scans", "unchanged", gradient, padded="rows") for rule, gradient in GRADIENTS.items()
)
