"""Losses of large tensors in one pass: input, target and mask are read once, and once more for the gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from maskgrad import kernels
from maskgrad.kernels.selection import runs_compiled
from maskgrad.semantics.entries import Entries, Operand, intersection, mask_of, values_of
from maskgrad.semantics.losses.adding_up import added_up
from maskgrad.semantics.numbers import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: The numbers of a distance: see ``maskgrad/kernels/losses/__init__.py``.
SQUARED = (1.0, math.inf, 1.0, 0.0)
ABSOLUTE = (0.0, 0.0, 1.0, 0.0)


def huber(delta: float = 1.0) -> tuple[float, ...] | None:
    """Half the square up to ``delta``, then a line; None where torch must say what is wrong with it."""
    return (0.5, delta, delta, delta * delta / 2) if 0 < delta < math.inf else None


def smooth(beta: float = 1.0) -> tuple[float, ...] | None:
    """Huber's divided by ``beta``; the absolute distance if that is 0."""
    if not 0 < beta < math.inf:
        return ABSOLUTE if beta == 0 else None
    return (0.5 / beta, beta, 1.0, beta / 2)


def fused(
    kind: str, input: Operand, target: Operand, reduction: str, numbers: Sequence[float] | None = ()
) -> Entries | Tensor | None:
    """The reduced loss; None where it must be computed step by step (small, traced, mixed dtypes, …)."""
    # asked for first, because what follows cannot be traced
    if torch.compiler.is_compiling() or numbers is None:
        return None
    x, t = values_of(input), values_of(target)
    masks = [operand.mask for operand in (input, target) if isinstance(operand, Entries)]
    if x.shape != t.shape or x.dtype != t.dtype or not runs_compiled("masked_loss", x, t, *masks):
        return None
    mask = intersection((input, target))
    assert mask is not None  # dispatch calls a rule only with masked arguments
    if reduction == "none":
        return Entries(kernels.masked_loss(x, t, mask, kind, numbers), mask)
    total, count = added_up(*kernels.masked_loss_sum(x, t, mask, kind, numbers))
    if reduction == "mean":
        return number(Entries((total / count.clamp(min=1)).to(x.dtype), count.to(torch.bool)), math.nan)
    return number(Entries(total.to(x.dtype), count.to(torch.bool)), 0)


def fused_cross_entropy(
    input: Operand, classes: Tensor, counted: Tensor, weight: Tensor | None, smoothing: float
) -> Tensor | None:
    """The loss of each position (float32 for halves), 0 where it does not count; None as for :func:`fused`.

    Args:
        input: the logits, with classes along dimension 1 (0 for a single sample).
        classes: the label of each position that counts.
        counted: where the label and its class are specified, and the label is not ignored.
        weight: of each position.
        smoothing: the label smoothing.
    """
    # asked for first, because what follows cannot be traced
    if torch.compiler.is_compiling():
        return None
    x, dim = values_of(input), 1 if counted.ndim else 0
    if not runs_compiled("masked_cross_entropy", x, mask_of(input), classes, counted, weight):
        return None
    if weight is not None and (weight.requires_grad or smoothing or weight.dtype != x.dtype):
        return None
    whole = bool(counted.all())
    labels = classes if whole else torch.where(counted, classes, 0)
    if labels.numel():
        low, high = labels.aminmax()
        if low < 0 or high >= x.shape[dim]:
            return None  # torch says what is wrong
    here = input.mask if isinstance(input, Entries) and whole else counted.unsqueeze(dim).expand(x.shape)
    if isinstance(input, Entries) and not whole:
        here = input.mask & here
    loss, _ = kernels.masked_cross_entropy(x, here, labels, smoothing)
    return loss if weight is None else loss * torch.where(counted, weight, 0)
