"""Plots of patterns and of training, drawn with matplotlib (``pip install 'maskgrad[plot]'``)."""

from maskgrad.plot.curves import curves
from maskgrad.plot.pattern import pattern

__all__ = ["curves", "pattern"]
