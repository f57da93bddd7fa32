"""Recurrent layers on padded sequences: each computed separately, up to its own end, in both directions.

Every layer and direction is one run of PyTorch's own function over the padded batch, without branches:

- steps after the end of a sequence cannot affect earlier ones, so a forward run needs no mask;
- a backward run is a forward run over the sequence reversed within its own length;
- a final state is the output of the last step. The cell state of an LSTM is not an output: a column, 1 in the padding,
  is appended to the input, with weights that close the input gate and open the forget gate there, so that the cell
  keeps its state to the end. For the unbounded ``relu`` such a column zeroes the padding, which could overflow.

A sequence without steps has unspecified outputs, and keeps its initial state as the final one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.kernels.smallest import any_of, smallest
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, Operand, as_entries, mask_of, rearranged, safe, specified
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound

SIGNATURE = "input hx params has_biases num_layers dropout train bidirectional batch_first"

#: Closes or opens a gate completely, as a power of the largest value: in every dtype sigmoid is 0 or 1 there,
#: and products with gradients do not overflow.
DECISIVE = 0.5

EVERY_STEP = "RNNs need sequences without gaps: each state depends on all steps before it"
PADDING_ONLY = (
    "Masks must begin with the first step of a sequence and have no gaps, as those of mg.from_lengths; fill "
    "missing entries with x.filled(value), or move the specified steps together."
)


class Steps(NamedTuple):
    """The steps of a batch that are specified.

    Attributes:
        length: length of each sequence, (N,).
        known: the sequences without gaps and incomplete steps, (N,).
        present: (T, N, 1).
    """

    length: Tensor
    known: Tensor
    present: Tensor


def steps_of(name: str, mask: Tensor) -> Steps:
    """Read a mask (T, N, features) with padding at the end; a gap that cannot be seen ends its sequence."""
    few = smallest(mask)
    if few.shape[-1] == 1:  # steps are fully specified or fully masked
        whole = some = few.squeeze(-1).expand(mask.shape[:-1])
    else:
        whole, some = mask.all(-1), any_of(mask, (-1,))
    present = whole.cumprod(0).bool()
    length = present.sum(0)
    known = (some == present).all(0)
    if can_read(known) and not bool(known.all()):
        raise UndefinedOnMaskedError(name, EVERY_STEP, PADDING_ONLY)
    return Steps(length, known, present.unsqueeze(-1))


def refuse_masked_weights(name: str, weights: Sequence[Any]) -> None:
    """Raise an error if weights are masked: gates would be undefined."""
    if any(isinstance(weight, Entries) for weight in weights):
        raise UndefinedOnMaskedError(
            name,
            "a gate with masked weights is undefined",
            "Fill the weights first: weight.filled(0) removes them.",
        )


def recurrence(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``, used by the modules."""
    name = f"torch.{function.__name__}"
    if len(args) > 3 and isinstance(args[3], (list, tuple)):
        raise UndefinedOnMaskedError(
            name, "packed data cannot hold padding", "Pass the padded batch instead of packing it."
        )
    given = bound(SIGNATURE, args, kwargs)
    refuse_masked_weights(name, given["params"])
    initial = list(given["hx"]) if function is torch.lstm else [given["hx"]]
    values, mask = as_entries(given["input"])
    if given["batch_first"]:
        values, mask = values.transpose(0, 1), mask.transpose(0, 1)
    steps = steps_of(name, mask)
    output, final = _layers(
        function, given, torch.where(steps.present, values, 0), steps, [safe(x) for x in initial]
    )
    begun = mask_of(initial[0]).new_ones(output.shape[1])
    for state in initial:  # sequences need complete ones
        begun = begun & mask_of(state).all(-1).all(0)
    out = Entries(output, (steps.present & begun.unsqueeze(-1)).expand(output.shape))
    final_mask = (steps.known & begun).unsqueeze(-1)
    ends = (Entries(state, final_mask.expand(state.shape)) for state in final)
    return (rearranged(out, lambda part: part.transpose(0, 1)) if given["batch_first"] else out, *ends)


def _layers(
    function: Callable[..., Any], given: dict[str, Any], x: Tensor, steps: Steps, initial: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """All layers (T, N, features), one direction at a time, and the final states (layers * directions, N, H)."""
    backwards, has_biases = _reversing(steps), given["has_biases"]
    directions = 2 if given["bidirectional"] else 1
    params = list(given["params"])
    per_run = len(params) // (given["num_layers"] * directions)
    finals: list[list[Tensor]] = []
    for layer in range(given["num_layers"]):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * per_run : (number + 1) * per_run]
            states = [state[number : number + 1] for state in initial]
            ahead = _taken(x, backwards) if direction else x
            output, final = _run_layer(function, ahead, states, weights, has_biases, steps)
            outputs.append(_taken(output, backwards) if direction else output)
            finals.append(final)
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if given["dropout"] and layer + 1 < given["num_layers"]:
            x = torch.dropout(x, given["dropout"], given["train"])
    return x, [torch.cat(parts) for parts in zip(*finals, strict=True)]


def _run_layer(
    function: Callable[..., Any],
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
    steps: Steps,
) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction: its output (T, N, H), and its state at the end of each sequence."""
    gates = _gates_in_padding(function.__name__)
    if gates is not None:
        first, *others = weights
        column = first.new_tensor(gates).mul(torch.finfo(first.dtype).max ** DECISIVE)
        column = column.repeat_interleave(first.shape[0] // len(gates)).unsqueeze(1)
        x = torch.cat([x, (~steps.present).to(x.dtype)], -1)
        weights = [torch.cat([first, column], 1), *others]
    hx = tuple(states) if len(states) == 2 else states[0]
    output, *ends = function(x, hx, weights, has_biases, 1, 0.0, False, False, False)
    last = (steps.length - 1).clamp(min=0).reshape(1, -1, 1).expand(1, -1, output.shape[-1])
    begun = (steps.length > 0).unsqueeze(-1)
    # PyTorch 2.12 traces cells with one dimension too many.
    cells = [end.reshape(start.shape) for end, start in zip(ends[1:], states[1:], strict=True)]
    return output, [torch.where(begun, output.gather(0, last), states[0]), *cells]


def _gates_in_padding(name: str) -> list[float] | None:
    """Added to the input of each gate by padding: -1 closes it, 1 opens it; None if padding is harmless."""
    if name == "lstm":
        return [-1.0, 1.0, 0.0, 0.0]  # input, forget, cell, output
    return [-1.0] if name == "rnn_relu" else None


def _reversing(steps: Steps) -> Tensor:
    """The source of each position (T, N, 1) when sequences are reversed within their lengths."""
    positions = torch.arange(steps.present.shape[0], device=steps.length.device).reshape(-1, 1, 1)
    return torch.where(steps.present, steps.length.reshape(1, -1, 1) - 1 - positions, positions)


def _taken(x: Tensor, positions: Tensor) -> Tensor:
    """Gather other positions (T, N, 1) of each sequence."""
    return x.gather(0, positions.expand(x.shape))


def cell(
    function: Callable[..., Any],
    input: Operand,
    hx: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    """One step: products as in a linear layer, then elementwise arithmetic with the old state."""
    weights, name = (w_ih, w_hh, b_ih, b_hh), function.__name__
    refuse_masked_weights(f"torch.{name}", weights)
    states = list(hx) if name == "lstm_cell" else [hx]
    result = function(safe(input), [safe(s) for s in states] if name == "lstm_cell" else safe(hx), *weights)
    mask = _some(input) & _some(states[0])
    if name in ("lstm_cell", "gru_cell") and isinstance(states[-1], Entries):
        mask = mask & states[-1].mask  # the old cell state, or the old state of a GRU, is used elementwise
    return specified(result, mask)


def _some(operand: Operand) -> Tensor:
    return any_of(mask_of(operand), (-1,), keepdim=True)


SEQUENCE = "that of the steps; a final state is specified"
STEP = "specified where input and state have a specified entry, and the old cell state is specified"
GRADIENT = "as if each sequence were alone"

OPERATIONS = tuple(
    record(name, "recurrence", body, pattern, GRADIENT, functions=(getattr(torch, name),), padded=padded)
    for suffix, body, pattern, padded in (("", recurrence, SEQUENCE, "mask"), ("_cell", cell, STEP, ""))
    for name in (f"lstm{suffix}", f"gru{suffix}", f"rnn_tanh{suffix}", f"rnn_relu{suffix}")
)
