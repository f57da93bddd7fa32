"""Standardizing groups of entries, on CUDA devices: the steps are in ``steps.py``."""

from __future__ import annotations

from maskgrad.kernels.batch_normalization.steps import bodies
from maskgrad.kernels.cuda import lines
from maskgrad.kernels.reductions.cuda import masked_count
from maskgrad.kernels.variance.cuda import masked_variance

masked_batch_norm, masked_batch_norm_backward = bodies(lines, masked_count, masked_variance)
