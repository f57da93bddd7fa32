r"""Cross entropy of labels over the specified classes: one pass over logits and mask, and one for the gradient.

The formulas are in the reference. The logsumexp and its gradient are the work, and are compiled (``softmax.py``);
what remains concerns one class of each position, and is left to PyTorch. The gradient of that class is
:math:`e^{x_y - L} - 1`, taken from the logits, not from the rounded softmax of a half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels import cross_entropy as family
from maskgrad.kernels.cpu.partition import partition, walkable
from maskgrad.kernels.cross_entropy import class_dim
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cpu import masked_count, masked_expand, masked_sum
from maskgrad.kernels.softmax import cpu as softmax
from maskgrad.kernels.softmax import cpu_loops as softmax_loops


def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    if not input.numel() or not input.ndim:
        return family.masked_cross_entropy.reference(input, mask, labels, smoothing)
    dim, wide = class_dim(input), _wide(input)
    parts = partition((walkable(input), mask), (dim,), softmax_loops.TILE)
    normalizer, _, present = softmax._statistics(parts, softmax_loops.LOGSUMEXP, False)
    if not bool(normalizer.amax() < torch.inf):
        normalizer = torch.where(normalizer == torch.inf, torch.nan, normalizer)  # inf - inf, as in torch
    picked = _picked(input, labels, dim)
    loss = normalizer - picked
    if smoothing:
        total, count = masked_sum(input, mask, (dim,), False, wide)
        loss = normalizer - (1 - smoothing) * picked - smoothing * total / count.clamp(min=1)
    if bool(present.all()):
        return loss, normalizer
    return torch.where(present, loss, 0), torch.where(present, normalizer, 0)


def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    if not input.numel() or not input.ndim:
        return family.masked_cross_entropy_gradient.reference(
            grad, input, mask, labels, normalizer, smoothing
        )
    dim, grad = class_dim(input), grad.to(_wide(input))
    out = softmax.masked_logsumexp_backward(grad.unsqueeze(dim), input, normalizer.unsqueeze(dim), mask)
    slope = torch.expm1(_picked(input, labels, dim) - normalizer)
    if smoothing:
        share = smoothing / masked_count(mask, (dim,), False).clamp(min=1).to(grad.dtype)
        out -= masked_expand((grad * share).unsqueeze(dim), mask, out.dtype)
        slope += smoothing - share
    at = labels.unsqueeze(dim)
    chosen = mask.gather(dim, at).squeeze(dim)  # where there is no class at all, the label is one of them
    out.scatter_(dim, at, torch.where(chosen, grad * slope, 0).to(out.dtype).unsqueeze(dim))
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in HALVES else x.dtype


def _picked(input: Tensor, labels: Tensor, dim: int) -> Tensor:
    return input.detach().gather(dim, labels.unsqueeze(dim)).squeeze(dim).to(_wide(input))
