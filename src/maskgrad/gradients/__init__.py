"""What is done with gradients between backward and the step."""

from maskgrad.gradients.clipping import clip_grad_norm_, clip_grad_value_, grad_norm

__all__ = ["clip_grad_norm_", "clip_grad_value_", "grad_norm"]
