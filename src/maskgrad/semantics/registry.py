"""All records, from one explicit list of families."""

from __future__ import annotations

from importlib import import_module

from maskgrad.semantics import conversion
from maskgrad.semantics.facts import Operation

FAMILIES = """
    elementwise reductions variance extrema norms covariance contractions convolutions pooling interpolation distances
    views indexing joins creation differentiation scattering losses embeddings attention multi_head_attention
    batch_normalization normalization random recurrence softmax scans differences sorting order_statistics histograms
    conversion
"""

OPERATIONS: tuple[Operation, ...] = (
    *(row for name in FAMILIES.split() for row in import_module(f"{__package__}.{name}").OPERATIONS),
    *conversion.METADATA,
)
