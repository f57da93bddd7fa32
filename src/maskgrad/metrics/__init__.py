"""Means and moments over batches, and metrics of other libraries on specified pairs."""

from maskgrad.metrics.mean import Mean
from maskgrad.metrics.moments import Moments
from maskgrad.metrics.wrapping import Wrapped, wrap

__all__ = ["Mean", "Moments", "Wrapped", "wrap"]
