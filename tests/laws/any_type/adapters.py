"""Adapters for the laws: ``python -m tests.laws tests.laws.any_type.adapters:torch_masked``."""

from __future__ import annotations

import torch

import maskgrad as mg
from tests.laws.any_type import Adapter

__all__ = ["maskgrad", "torch_masked"]


def maskgrad() -> Adapter:
    """:class:`maskgrad.MaskedTensor`."""
    return Adapter(
        make=mg.masked, values=lambda x: x.filled(torch.zeros((), dtype=x.dtype)), mask=lambda x: x.mask
    )


def torch_masked() -> Adapter:
    """``torch.masked.MaskedTensor``."""
    from torch.masked import as_masked_tensor

    return Adapter(make=as_masked_tensor, values=lambda x: x.get_data(), mask=lambda x: x.get_mask())
