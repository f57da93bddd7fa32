r"""The steps of both compiled bodies: the logsumexp of all classes, and what concerns one class of each position.

The logsumexp and its gradient are the work, and are compiled (``softmax``); the rest is left to PyTorch. The gradient
of the labelled class is :math:`e^{x_y - L} - 1`, taken from the logits, not from the rounded softmax of a half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.cross_entropy import class_dim
from maskgrad.kernels.kernel import HALVES


def bodies(
    logsumexp: Callable[..., tuple[Tensor, Tensor]],
    logsumexp_backward: Callable[..., Tensor],
    reductions: Any,
    raises: bool,
) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]:
    """``masked_cross_entropy`` and its gradient, of the kernels of one device.

    ``logsumexp`` of input, mask and dimension is not rounded to halves, and comes with whether there is an entry.
    A label that is no class is an error if the device ``raises`` errors; on a GPU the loss is NaN.
    """

    def masked_cross_entropy(
        input: Tensor, mask: Tensor, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dim, (picked, named) = class_dim(input), _picked(input, labels, raises)
        normalizer, present = logsumexp(input.detach(), mask, (dim,))
        normalizer = torch.where(normalizer == torch.inf, torch.nan, normalizer)  # inf - inf, as in torch
        loss = normalizer - picked
        if smoothing:
            total, count = reductions.masked_sum(input, mask, (dim,), False, picked.dtype)
            loss = normalizer - (1 - smoothing) * picked - smoothing * total / count.clamp(min=1)
        if named is not None:
            loss = torch.where(named, loss, torch.nan)
        return torch.where(present, loss, 0), torch.where(present, normalizer, 0)

    def masked_cross_entropy_gradient(
        grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
    ) -> Tensor:
        dim, (picked, named) = class_dim(input), _picked(input, labels, raises)
        grad = grad.detach().to(picked.dtype)
        out = logsumexp_backward(grad.unsqueeze(dim), input, normalizer.unsqueeze(dim), mask)
        slope = torch.expm1(picked - normalizer)
        if smoothing:
            share = smoothing / reductions.masked_count(mask, (dim,), False).clamp(min=1).to(grad.dtype)
            out -= reductions.masked_expand((grad * share).unsqueeze(dim), mask, out.dtype)
            slope += smoothing - share
        at = (labels if named is None else torch.where(named, labels, 0)).unsqueeze(dim)
        chosen = mask.gather(dim, at).squeeze(dim)  # where there is no class at all, the label is one of them
        found = torch.where(chosen, grad * slope, 0).to(out.dtype).unsqueeze(dim)
        if named is not None:
            found = torch.where(named.unsqueeze(dim), found, out.gather(dim, at))
        return out.scatter_(dim, at, found)

    return masked_cross_entropy, masked_cross_entropy_gradient


def _picked(input: Tensor, labels: Tensor, raises: bool) -> tuple[Tensor, Tensor | None]:
    """The logit of each label, and, where no error is raised, which labels are classes."""
    dim, wide = class_dim(input), torch.float32 if input.dtype in HALVES else input.dtype
    named = None
    if not raises:
        named = (labels >= 0) & (labels < input.shape[dim])
        labels = torch.where(named, labels, 0)
    return input.detach().gather(dim, labels.unsqueeze(dim)).squeeze(dim).to(wide), named
