r"""Replacing what is under a mask by a constant, in ordinary PyTorch.

.. math:: y_i = x_i \text{ where } m_i, \text{ else filler}, \qquad
          \frac{\partial y_i}{\partial x_i} = 1 \text{ where } m_i, \text{ else } 0

A selection in both directions: nothing under the mask, not even a NaN, reaches the result or a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """``values`` where ``mask`` (of the same shape) holds, ``filler``, a number of their category, elsewhere."""
    return torch.where(mask, values, filler)
