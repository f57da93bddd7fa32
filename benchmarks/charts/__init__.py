"""Pictures of measurements: a few numbers beside each other, and how a cost grows."""

from benchmarks.charts.dots import dots
from benchmarks.charts.scaling import scaling

__all__ = ["dots", "scaling"]
