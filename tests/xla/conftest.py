"""PyTorch/XLA on the CPU unless PJRT_DEVICE says otherwise."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")

with warnings.catch_warnings():  # what it says of itself when it is imported
    warnings.simplefilter("ignore")
    import torch_xla
    import torch_xla.debug.metrics


@pytest.fixture
def device() -> torch.device:
    return torch_xla.device()


@pytest.fixture(autouse=True)
def _nothing_pending() -> None:
    """What earlier tests left to be computed is computed, so that nobody counts it as theirs."""
    torch_xla.sync(wait=True)
