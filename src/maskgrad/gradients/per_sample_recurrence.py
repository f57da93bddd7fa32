"""Recurrent networks written out, step by step: fused ones give no gradient per sample, and do not support ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maskgrad.gradients.per_sample_mode import NotByRuleError, PerSampleMode, Rule

__all__ = ["RECURRENCES"]

# From what the input and the old state contribute to the gates, and the old state, to the new one; h comes first.
_Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _lstm_step(from_input: Tensor, from_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(from_input: Tensor, from_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (r, z, n), (old_r, old_z, old_n) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    update = (z + old_z).sigmoid()
    new = (n + (r + old_r).sigmoid() * old_n).tanh()
    return (new + update * (state[0] - new),)


def _tanh_step(from_input: Tensor, from_state: Tensor, _: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((from_input + from_state).tanh(),)


def _relu_step(from_input: Tensor, from_state: Tensor, _: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((from_input + from_state).relu(),)


def _cell(step: _Step, states: int) -> Rule:
    def run(
        mode: PerSampleMode,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = tuple(hx) if states == 2 else (hx,)
        with mode:
            new = step(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return new if states == 2 else new[0]

    return run


def _network(step: _Step, states: int) -> Rule:
    """Layers, directions, dropout between layers, projections of an LSTM, as ``torch.lstm`` and its relatives do it."""

    def run(
        mode: PerSampleMode,
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool | None = None,
    ) -> Any:
        if batch_first is None or isinstance(params, bool):
            raise NotByRuleError  # packed sequences, whose lengths are data
        start = list(hx) if states == 2 else [hx]
        directions = 2 if bidirectional else 1
        per_layer = len(params) // (num_layers * directions)
        sequence = input.transpose(0, 1) if batch_first else input
        last: list[list[Tensor]] = [[] for _ in start]
        with mode:
            for layer in range(num_layers):
                outputs = []
                for direction in range(directions):
                    number = layer * directions + direction
                    weights = params[number * per_layer : (number + 1) * per_layer]
                    state = tuple(s[number] for s in start)
                    found, state = _along(step, sequence, state, weights, bool(has_biases), direction == 1)
                    outputs.append(found)
                    for kept, part in zip(last, state, strict=True):
                        kept.append(part)
                sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
                if dropout and train and layer < num_layers - 1:
                    sequence = F.dropout(sequence, dropout, True)
        output = sequence.transpose(0, 1) if batch_first else sequence
        return (output, *(torch.stack(kept) for kept in last))

    return run


def _along(
    step: _Step,
    sequence: Tensor,
    state: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction: its outputs in the order of the inputs (time first), and its last state."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_biases else (None, None)
    rest = weights[4:] if has_biases else weights[2:]
    from_inputs = F.linear(sequence, w_ih, b_ih)
    steps = range(len(sequence))
    outputs = []
    for time in reversed(steps) if backwards else steps:
        state = step(from_inputs[time], F.linear(state[0], w_hh, b_hh), state)
        if rest:  # the projection of an LSTM
            state = (F.linear(state[0], rest[0]), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


RECURRENCES: Mapping[Any, Rule] = {
    torch.lstm: _network(_lstm_step, 2),
    torch.gru: _network(_gru_step, 1),
    torch.rnn_tanh: _network(_tanh_step, 1),
    torch.rnn_relu: _network(_relu_step, 1),
    torch.lstm_cell: _cell(_lstm_step, 2),
    torch.gru_cell: _cell(_gru_step, 1),
    torch.rnn_tanh_cell: _cell(_tanh_step, 1),
    torch.rnn_relu_cell: _cell(_relu_step, 1),
}
