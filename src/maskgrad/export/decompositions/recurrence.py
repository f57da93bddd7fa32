"""Recurrent layers step by step, where ONNX has no operator for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BODIES", "lstm_layer"]


def lstm_layer(
    x: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, reverse: bool = False
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer in one direction: steps (T, N, ·) to outputs (T, N, H) and the final state and cell, (N, H)."""
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


def projected_lstm(
    x: Tensor,
    hidden: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """ONNX's LSTM has no projection of the states; there are as many steps in the file as in the example."""
    states, cells = hidden
    if states.shape[-1] == cells.shape[-1] or (train and dropout):
        return NotImplemented
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    per_run = len(params) // (num_layers * directions)
    ends = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            run = layer * directions + direction
            weights = params[run * per_run : (run + 1) * per_run]
            output, end = lstm_layer(x, (states[run], cells[run]), weights, has_biases, direction == 1)
            outputs.append(output)
            ends.append(end)
        x = torch.cat(outputs, -1)
    state, cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return x.transpose(0, 1) if batch_first else x, state, cell


BODIES = {"lstm.input": projected_lstm}
