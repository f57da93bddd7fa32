"""Adapters for the laws: ``python -m maskgrad.testing.laws maskgrad.testing.adapters:torch_masked``."""

from __future__ import annotations

import torch

import maskgrad as mg
from maskgrad.testing.laws import Adapter

__all__ = ["maskgrad", "torch_masked"]


def maskgrad() -> Adapter:
    """:class:`maskgrad.MaskedTensor`."""
    return Adapter(
        make=mg.masked,
        values=lambda x: x.filled(torch.zeros((), dtype=x.dtype)),
        mask=lambda x: x.mask,
    )


def torch_masked() -> Adapter:
    """``torch.masked.MaskedTensor``."""
    from torch.masked import as_masked_tensor

    return Adapter(
        make=as_masked_tensor,
        values=lambda x: x.get_data(),
        mask=lambda x: x.get_mask(),
    )
