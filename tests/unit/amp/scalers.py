"""What the tests of the scaler share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg

grad_dtype_exists = hasattr(Tensor, "grad_dtype")
HALVES = [torch.float16, torch.bfloat16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])


def scaler(scale: float = 8.0, **options: Any) -> mg.amp.GradScaler:
    """A scaler that has seen a loss."""
    made = mg.amp.GradScaler("cpu", init_scale=scale, **options)
    made.scale(torch.zeros(()))
    return made
