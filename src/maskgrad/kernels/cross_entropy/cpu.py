"""Cross entropy of labels over the specified classes.

The logsumexp and its gradient are the work, and are compiled (``softmax``); what concerns one class of each position is
left to PyTorch. The gradient of the labelled class is :math:`e^{x_y - L} - 1`, taken from the logits, not from the
rounded softmax of a half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.cpu.partition import partition, walkable
from maskgrad.kernels.cross_entropy import class_dim
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions import cpu as reductions
from maskgrad.kernels.softmax import cpu as softmax
from maskgrad.kernels.softmax import cpu_loops as loops


def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    dim, picked = class_dim(input), _picked(input, labels)
    parts = partition((walkable(input.detach()), mask), (dim,), loops.TILE)
    normalizer, _, present = softmax.statistics(*parts, loops.LOGSUMEXP, False)
    normalizer = torch.where(normalizer == torch.inf, torch.nan, normalizer)  # inf - inf, as in torch
    loss = normalizer - picked
    if smoothing:
        average, _ = reductions.masked_mean(input, mask, (dim,), False, picked.dtype)
        loss = normalizer - (1 - smoothing) * picked - smoothing * average
    return torch.where(present, loss, 0), torch.where(present, normalizer, 0)


def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    dim, picked = class_dim(input), _picked(input, labels)
    grad, at = grad.detach().to(picked.dtype), labels.unsqueeze(dim)
    out = softmax.masked_logsumexp_backward(grad.unsqueeze(dim), input, normalizer.unsqueeze(dim), mask)
    slope = torch.expm1(picked - normalizer)
    if smoothing:
        share = smoothing / reductions.masked_count(mask, (dim,), False).clamp(min=1).to(grad.dtype)
        out -= reductions.masked_expand((grad * share).unsqueeze(dim), mask, out.dtype)
        slope += smoothing - share
    chosen = mask.gather(dim, at).squeeze(dim)  # where no class is specified, the label is unspecified, too
    return out.scatter_(dim, at, torch.where(chosen, grad * slope, 0).to(out.dtype).unsqueeze(dim))


def _picked(input: Tensor, labels: Tensor) -> Tensor:
    """Logit of each label."""
    dim, wide = class_dim(input), torch.float32 if input.dtype in HALVES else input.dtype
    return input.detach().gather(dim, labels.unsqueeze(dim)).squeeze(dim).to(wide)
