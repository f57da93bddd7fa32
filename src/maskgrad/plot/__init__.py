"""Pictures of patterns, of training and of measurements, drawn with matplotlib (``pip install 'maskgrad[plot]'``).

Each function draws into the axes it is given, or into new ones, and returns them.
"""

from maskgrad.plot.bars import bars
from maskgrad.plot.curves import curves
from maskgrad.plot.dots import dots
from maskgrad.plot.pattern import pattern
from maskgrad.plot.scaling import scaling

__all__ = ["bars", "curves", "dots", "pattern", "scaling"]
