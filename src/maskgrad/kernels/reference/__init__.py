"""The slow version of every kernel: ordinary PyTorch, any device, differentiable, exportable, the oracle."""

from __future__ import annotations

from maskgrad.kernels.reference.coalescing import merge_rows
from maskgrad.kernels.reference.filling import masked_filling
from maskgrad.kernels.reference.reductions import masked_count, masked_mean, masked_spread, masked_sum
from maskgrad.kernels.reference.segments import (
    segment_extremum,
    segment_softmax,
    segment_softmax_backward,
    segment_spread,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.reference.updates import adagrad_rows_, sgd_rows_

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
