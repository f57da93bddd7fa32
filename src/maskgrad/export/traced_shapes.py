"""Tracing by which PyTorch finds the shapes that it computes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["right_shapes"]


@contextlib.contextmanager
def right_shapes() -> Iterator[None]:
    """The final states of an LSTM are (layers, N, H): while it traces, PyTorch 2.9 finds (layers, 1, N, H)."""
    if not _adds_a_dimension():
        yield
        return
    from torch._decomp import decompositions

    layers: Any = decompositions
    before = layers.one_layer_lstm
    layers.one_layer_lstm = _layer
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


def _layer(
    x: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, reverse: bool = False
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What PyTorch calls so: steps (T, N, ·) to outputs (T, N, H) and the final state and cell, (N, H)."""
    of_input, of_state, *others = params
    bias_of_input, bias_of_state = others[:2] if has_biases else (None, None)
    projection = others[2:] if has_biases else others
    state, cell = hidden
    steps = F.linear(x, of_input, bias_of_input)
    outputs = []
    for step in reversed(steps.unbind()) if reverse else steps.unbind():
        let_in, keep, new, let_out = (step + F.linear(state, of_state, bias_of_state)).chunk(4, -1)
        cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
        state = let_out.sigmoid() * cell.tanh()
        if projection:
            state = F.linear(state, projection[0])
        outputs.append(state)
    return torch.stack(outputs[::-1] if reverse else outputs), (state, cell)
