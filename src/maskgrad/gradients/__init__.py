"""Functions for gradients between the backward pass and the step."""

from maskgrad.gradients.accumulation import GradientAccumulator
from maskgrad.gradients.batched import batched_grad, batched_hessian
from maskgrad.gradients.checking import gradcheck, gradgradcheck
from maskgrad.gradients.clipping import clip_grad_norm_, clip_grad_value_, grad_norm
from maskgrad.gradients.coupled_backward import coupled_backward
from maskgrad.gradients.function import Function
from maskgrad.gradients.gradient_surgery import mask_gradient, reverse_gradient
from maskgrad.gradients.penalty import gradient_penalty
from maskgrad.gradients.per_sample import clipped_backward, per_sample_grad, per_sample_grad_norms

__all__ = [
    "Function", "GradientAccumulator", "batched_grad", "batched_hessian", "clip_grad_norm_",
    "clip_grad_value_", "clipped_backward", "coupled_backward", "grad_norm", "gradcheck", "gradgradcheck",
    "gradient_penalty", "mask_gradient", "per_sample_grad", "per_sample_grad_norms", "reverse_gradient",
]  # fmt: skip
