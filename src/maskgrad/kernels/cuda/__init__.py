"""The same kernels for CUDA devices, written in Triton: one fused pass over the data.

Importing this package imports Triton, so nothing imports it before the first call that runs here. A family that has a
file here has a body here for each of its kernels.
"""

from __future__ import annotations

from maskgrad.kernels.cuda.batch_normalization import masked_batch_norm, masked_batch_norm_backward
from maskgrad.kernels.cuda.coalescing import merge_rows
from maskgrad.kernels.cuda.cross_entropy import masked_cross_entropy, masked_cross_entropy_gradient
from maskgrad.kernels.cuda.extrema import masked_extremum, masked_extremum_spread, masked_position
from maskgrad.kernels.cuda.filling import masked_filling
from maskgrad.kernels.cuda.lookup import lookup_rows
from maskgrad.kernels.cuda.losses import masked_loss, masked_loss_gradient, masked_loss_sum
from maskgrad.kernels.cuda.moments import masked_variance, masked_variance_backward
from maskgrad.kernels.cuda.normalization import masked_layer_norm, masked_layer_norm_backward
from maskgrad.kernels.cuda.norms import masked_norm, masked_norm_backward
from maskgrad.kernels.cuda.prod import masked_prod, masked_prod_backward
from maskgrad.kernels.cuda.reductions import masked_count, masked_mean, masked_spread, masked_sum
from maskgrad.kernels.cuda.segment_exponentials import segment_logsumexp, segment_logsumexp_backward
from maskgrad.kernels.cuda.segment_moments import segment_mean, segment_variance, segment_variance_backward
from maskgrad.kernels.cuda.segment_norms import segment_norm, segment_norm_backward
from maskgrad.kernels.cuda.segment_products import segment_prod, segment_prod_backward
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
    "lookup_rows",
    "masked_batch_norm",
    "masked_batch_norm_backward",
    "masked_count",
    "masked_cross_entropy",
    "masked_cross_entropy_gradient",
    "masked_extremum",
    "masked_extremum_spread",
    "masked_filling",
    "masked_layer_norm",
    "masked_layer_norm_backward",
    "masked_logsumexp",
    "masked_logsumexp_backward",
    "masked_loss",
    "masked_loss_gradient",
    "masked_loss_sum",
    "masked_mean",
    "masked_norm",
    "masked_norm_backward",
    "masked_position",
    "masked_prod",
    "masked_prod_backward",
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
    "segment_logsumexp",
    "segment_logsumexp_backward",
    "segment_mean",
    "segment_norm",
    "segment_norm_backward",
    "segment_prod",
    "segment_prod_backward",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_spread",
    "segment_sum",
    "segment_variance",
    "segment_variance_backward",
    "sgd_rows_",
    "sort_rows",
]
