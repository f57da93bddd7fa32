"""The same kernels, compiled by Numba: one fused pass over the data, on PyTorch's own threads.

Importing this package imports Numba, so nothing imports it before the first call that runs here.
"""

from __future__ import annotations

from maskgrad.kernels.cpu.coalescing import merge_rows
from maskgrad.kernels.cpu.filling import masked_filling
from maskgrad.kernels.cpu.reductions import masked_count, masked_mean, masked_spread, masked_sum
from maskgrad.kernels.cpu.segments import (
    segment_extremum,
    segment_softmax,
    segment_softmax_backward,
    segment_spread,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.cpu.updates import adagrad_rows_, sgd_rows_

__all__ = [
    "adagrad_rows_",
    "masked_count",
    "masked_filling",
    "masked_mean",
    "masked_spread",
    "masked_sum",
    "merge_rows",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sgd_rows_",
    "sort_rows",
]
