"""Where the layout was before the kernels for CUDA needed it, too; see :mod:`maskgrad.kernels.layout`."""

from __future__ import annotations

from maskgrad.kernels.layout import Axis, Nest, axes, nest, offsets

__all__ = ["Axis", "Nest", "axes", "nest", "offsets"]
