"""The same kernels for CUDA devices, written in Triton: one fused pass over the data.

Importing this package imports Triton, so nothing imports it before the first call that runs here. A family that has a
file here has a body here for each of its kernels.
"""

from __future__ import annotations

from maskgrad.kernels.cuda.coalescing import merge_rows
from maskgrad.kernels.cuda.extrema import masked_extremum, masked_extremum_spread, masked_position
from maskgrad.kernels.cuda.filling import masked_filling
from maskgrad.kernels.cuda.moments import masked_variance, masked_variance_backward
from maskgrad.kernels.cuda.reductions import masked_count, masked_mean, masked_spread, masked_sum
from maskgrad.kernels.cuda.segments import (
    segment_extremum,
    segment_softmax,
    segment_softmax_backward,
    segment_spread,
    segment_sum,
    sort_rows,
)
from maskgrad.kernels.cuda.softmax import (
    masked_logsumexp,
    masked_logsumexp_backward,
    masked_softmax,
    masked_softmax_backward,
)
from maskgrad.kernels.cuda.updates import (
    adagrad_rows_,
    adam_rows_,
    rmsprop_rows_,
    rowwise_adagrad_rows_,
    sgd_rows_,
)

__all__ = [
    "adagrad_rows_",
    "adam_rows_",
    "masked_count",
    "masked_extremum",
    "masked_extremum_spread",
    "masked_filling",
    "masked_logsumexp",
    "masked_logsumexp_backward",
    "masked_mean",
    "masked_position",
    "masked_softmax",
    "masked_softmax_backward",
    "masked_spread",
    "masked_sum",
    "masked_variance",
    "masked_variance_backward",
    "merge_rows",
    "rmsprop_rows_",
    "rowwise_adagrad_rows_",
    "segment_extremum",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "sgd_rows_",
    "sort_rows",
]
