"""Cross entropy of labels over the specified classes, on CUDA devices: the steps are in ``steps.py``."""

from __future__ import annotations

from maskgrad.kernels.cross_entropy.steps import bodies
from maskgrad.kernels.reductions import cuda as reductions
from maskgrad.kernels.softmax import cuda as softmax

masked_cross_entropy, masked_cross_entropy_gradient = bodies(
    softmax.logsumexp, softmax.masked_logsumexp_backward, reductions, raises=False
)
