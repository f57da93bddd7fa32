"""Kernels: functions on plain tensors, each with one schema, a reference and several implementations.

One folder per family. Its ``__init__.py`` defines the kernels and their derivatives in ordinary PyTorch; ``cpu.py`` in
the same folder computes the same fast, with code shared by all families in ``cpu/``. On CUDA devices the definitions
run compiled (``compiled.py``). ``kernel.py`` defines a kernel, ``selection.py`` selects the implementation. Importing
this package imports neither Numba nor anything compiled.

In the reductions, ``values`` and ``mask`` have one shape (``mask`` may be an expanded view), ``dim`` lists the reduced
dimensions (the empty tuple reduces nothing), and masked values influence neither results nor gradients.
"""

from __future__ import annotations

from maskgrad.kernels.attention import ragged_scaled_dot_product_attention, served_rows
from maskgrad.kernels.coalescing import merge_rows
from maskgrad.kernels.extrema import masked_extremum, masked_position
from maskgrad.kernels.filling import filled, masked_filling
from maskgrad.kernels.kernel import KERNELS, explain, kernels_in_use
from maskgrad.kernels.losses import masked_distance_sum
from maskgrad.kernels.normalization import standardized
from maskgrad.kernels.norms import masked_norm, segment_norm
from maskgrad.kernels.prod import product, segment_product
from maskgrad.kernels.reductions import masked_count, masked_mean, masked_sum
from maskgrad.kernels.segments import (
    segment_expand,
    segment_extremum,
    segment_softmax,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.selection import use_kernels
from maskgrad.kernels.softmax import masked_logsumexp, masked_softmax, segment_logsumexp
from maskgrad.kernels.updates import update_rows_
from maskgrad.kernels.variance import masked_variance, segment_mean, segment_variance

__all__ = [
    "KERNELS", "explain", "filled", "kernels_in_use", "masked_count", "masked_distance_sum", "masked_extremum",
    "masked_filling", "masked_logsumexp", "masked_mean", "masked_norm", "masked_position", "masked_softmax",
    "masked_sum", "masked_variance", "merge_rows", "product", "ragged_scaled_dot_product_attention",
    "segment_expand", "segment_extremum", "segment_logsumexp", "segment_mean", "segment_norm",
    "segment_product", "segment_softmax", "segment_sum", "segment_variance", "served_rows", "sort_rows",
    "standardized", "update_rows_", "use_kernels",
]  # fmt: skip

for record in KERNELS.values():
    record.define()
