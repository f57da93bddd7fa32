"""What is said of several times: median, quartiles, and how a time grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "spread"]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles: half of the repetitions lie between ``q1`` and ``q3``."""

    q1: float
    median: float
    q3: float


def spread(times: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number.

    Example:
        >>> spread([1., 2., 3., 4., 100.])
        Spread(q1=2.0, median=3.0, q3=4.0)
    """
    if len(times) == 1:
        return Spread(times[0], times[0], times[0])
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive")
    return Spread(q1, median, q3)
