"""Metrics of other people's libraries over what predictions and targets both have."""

from maskgrad.metrics.wrapping import Wrapped, wrap

__all__ = ["Wrapped", "wrap"]
