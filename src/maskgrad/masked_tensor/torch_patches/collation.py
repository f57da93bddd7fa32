"""MaskedTensors in a DataLoader: samples are stacked into batches by torch's default collation."""

from __future__ import annotations

from typing import Any

import torch

from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["install"]


def collate(batch: list[MaskedTensor], *, collate_fn_map: Any = None) -> MaskedTensor:
    """Stack samples of one shape."""
    return torch.stack(batch, 0)  # type: ignore[arg-type, return-value]


def install() -> None:
    """Register the class with ``torch.utils.data.default_collate``."""
    from torch.utils.data._utils import collate as collation

    collation.default_collate_fn_map[MaskedTensor] = collate
