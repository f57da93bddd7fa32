"""Tracing by which PyTorch finds the shapes that it computes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from maskgrad.export.decompositions.recurrence import lstm_layer

__all__ = ["right_shapes"]


@contextlib.contextmanager
def right_shapes() -> Iterator[None]:
    """The final states of an LSTM are (layers, N, H): while it traces, PyTorch 2.12 finds (layers, 1, N, H)."""
    if not _adds_a_dimension():
        yield
        return
    from torch._decomp import decompositions

    layers: Any = decompositions
    before = layers.one_layer_lstm
    layers.one_layer_lstm = lstm_layer
    try:
        yield
    finally:
        layers.one_layer_lstm = before


@functools.cache
def _adds_a_dimension() -> bool:
    from torch._decomp import decompositions

    layer = getattr(decompositions, "one_layer_lstm", None)
    if layer is None:  # a version of PyTorch that traces in another way
        return False
    states = (torch.zeros(2, 1), torch.zeros(2, 1))
    _, (_, cell) = layer(torch.zeros(1, 2, 1), states, [torch.zeros(4, 1), torch.zeros(4, 1)], False)
    return bool(cell.ndim != 2)
