"""Means and moments over batches; ``maskgrad.align`` has the pairs for metrics of other libraries."""

from maskgrad.instead import missing_attribute
from maskgrad.metrics.mean import Mean
from maskgrad.metrics.moments import Moments

__all__ = ["Mean", "Moments"]


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
