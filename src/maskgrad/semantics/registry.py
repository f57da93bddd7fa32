"""All records, from one explicit list of families."""

from __future__ import annotations

from maskgrad.semantics import (
    attention,
    batch_normalization,
    contractions,
    conversion,
    convolutions,
    covariance,
    creation,
    differences,
    differentiation,
    distances,
    elementwise,
    embeddings,
    extrema,
    histograms,
    indexing,
    interpolation,
    joins,
    linear_algebra,
    losses,
    max_pooling,
    multi_head_attention,
    normalization,
    norms,
    order_statistics,
    pooling,
    random,
    recurrence,
    reductions,
    scans,
    scattering,
    softmax,
    sorting,
    variance,
    views,
)
from maskgrad.semantics.facts import Operation

FAMILIES = (
    elementwise, reductions, variance, extrema, norms, covariance, contractions, linear_algebra, convolutions,
    pooling, max_pooling, interpolation, distances, views, indexing, joins, creation, differentiation,
    scattering, losses, embeddings, attention, multi_head_attention, batch_normalization, normalization, random,
    recurrence, softmax, scans, differences, sorting, order_statistics, histograms, conversion,
)  # fmt: skip

OPERATIONS: tuple[Operation, ...] = (
    *(operation for family in FAMILIES for operation in family.OPERATIONS),
    *conversion.METADATA,
)
