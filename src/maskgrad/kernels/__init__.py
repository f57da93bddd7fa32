"""Kernels: plain tensors in, plain tensors out; each with one schema and several bodies.

``registry.py`` lists the families, a family (``reductions.py``, ...) holds its kernels' records and derivatives,
``selection.py`` decides which body runs, ``reference/`` says what is computed, ``cpu/`` computes it fast. Importing
this package imports neither Numba nor anything compiled.

In the reductions, ``values`` and ``mask`` have one shape (``mask`` may be an expanded view), ``dim`` lists the reduced
dimensions (the empty tuple reduces nothing), and what lies under the mask influences neither results nor gradients.
"""

from __future__ import annotations

from maskgrad.kernels import registry
from maskgrad.kernels.coalescing import merge_rows
from maskgrad.kernels.filling import masked_filling
from maskgrad.kernels.reductions import masked_count, masked_mean, masked_sum
from maskgrad.kernels.segments import (
    segment_extremum,
    segment_softmax,
    segment_softmax_backward,
    segment_spread,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.selection import kernels_in_use, use_kernels, why
from maskgrad.kernels.updates import adagrad_rows_, sgd_rows_

__all__ = [
    "adagrad_rows_",
    "kernels_in_use",
    "masked_count",
    "masked_filling",
    "masked_mean",
    "masked_sum",
    "merge_rows",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sgd_rows_",
    "sort_rows",
    "use_kernels",
    "why",
]

registry.register()
