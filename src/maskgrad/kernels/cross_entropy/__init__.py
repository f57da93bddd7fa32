r"""Cross entropy of labels over the specified classes, in ordinary PyTorch.

.. math:: \ell = \log \sum_c m_c e^{x_c} - (1 - \varepsilon)\, x_y - \varepsilon\, \bar x, \qquad
          \frac{\partial \ell}{\partial x_c} = m_c \left(\frac{e^{x_c}}{\sum_c m_c e^{x_c}} - (1 - \varepsilon)
          [c = y] - \frac{\varepsilon}{n}\right)

with the label :math:`y`, which is specified, the mean :math:`\bar x` of the :math:`n` specified classes, and the
label smoothing :math:`\varepsilon`. Where no class is specified, loss and gradient are 0. Classes lie along dimension
1, those of a single sample along dimension 0. Half precision is computed in float32, and the losses are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, HALVES, kernel, like
from maskgrad.kernels.smallest import any_of


def class_dim(input: Tensor) -> int:
    """Dimension of the classes."""
    return 1 if input.ndim > 1 else 0


@kernel("(Tensor input, Tensor mask, Tensor labels, float smoothing) -> (Tensor, Tensor)", FLOATS, fuses=True)
def masked_cross_entropy(
    input: Tensor, mask: Tensor, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Loss of each position (float32 for half precision), 0 where no class is specified, and the logsumexp.

    Each label is the index of a class, a specified one where any class is specified.
    """
    dim, (x, present) = class_dim(input), _safe(input, mask)
    normalizer = torch.logsumexp(x, dim)
    normalizer = torch.where(normalizer.isfinite(), normalizer, torch.nan)  # inf - inf, as in torch
    picked = x.gather(dim, labels.unsqueeze(dim)).squeeze(dim)
    loss = normalizer - picked
    if smoothing:
        count = mask.sum(dim).clamp(min=1)
        loss = normalizer - (1 - smoothing) * picked - smoothing * torch.where(mask, x, 0).sum(dim) / count
    return torch.where(present, loss, 0), torch.where(present, normalizer, 0)


@kernel(
    "(Tensor grad, Tensor input, Tensor mask, Tensor labels, Tensor normalizer, float smoothing) -> Tensor",
    FLOATS,
    fuses=True,
    leading=1,
)
def masked_cross_entropy_gradient(
    grad: Tensor, input: Tensor, mask: Tensor, labels: Tensor, normalizer: Tensor, smoothing: float
) -> Tensor:
    """The gradient of the input from that of the losses; ``normalizer`` is the logsumexp."""
    dim, (x, present) = class_dim(input), _safe(input, mask)
    slope = torch.softmax(x, dim)
    chosen = torch.zeros_like(slope).scatter(dim, labels.unsqueeze(dim), 1 - smoothing)
    slope = slope - chosen - smoothing / mask.sum(dim, keepdim=True).clamp(min=1).to(x.dtype)
    wide = torch.where(present, grad.to(x.dtype), 0).unsqueeze(dim)
    return torch.where(mask, torch.where(mask, slope, 0) * wide, 0).to(input.dtype)


def _safe(input: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits with -inf for unspecified classes, zeros where no class is specified; and which positions have one."""
    dim, x = class_dim(input), input.float() if input.dtype in HALVES else input
    present = any_of(mask, (dim,))
    nothing = torch.where(present, -torch.inf, 0.0).to(x.dtype).unsqueeze(dim)
    return torch.where(mask, x, nothing), present


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, mask, labels, ctx.smoothing = inputs
    ctx.save_for_backward(input, mask, labels, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    input, mask, labels, normalizer = ctx.saved_tensors
    found = masked_cross_entropy_gradient(grad, input, mask, labels, normalizer, ctx.smoothing)
    return found, None, None, None


def _fake(input: Tensor, mask: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    shapes = masked_cross_entropy.reference(input, mask, labels, smoothing)
    return shapes[0].contiguous(), shapes[1].contiguous()


masked_cross_entropy.derive(_save, _backward)
masked_cross_entropy.fake = _fake
masked_cross_entropy_gradient.derive_through_reference()
masked_cross_entropy_gradient.fake = like(1)
