"""Standardizing groups of entries, on CPUs: the steps are in ``steps.py``."""

from __future__ import annotations

from maskgrad.kernels.batch_normalization.steps import bodies
from maskgrad.kernels.cpu import lines
from maskgrad.kernels.reductions.cpu import masked_count
from maskgrad.kernels.variance.cpu import masked_variance

masked_batch_norm, masked_batch_norm_backward = bodies(lines, masked_count, masked_variance)
