"""Recurrent layers on sequences of different lengths: at each step the sequences that reach it, longest first.

Rows are put in the order of *packed* sequences: step by step, and in each step by decreasing length of the sequence.
A GPU runs this directly. PyTorch's loop for packed sequences on the CPU is slower than a padded batch (it copies all
rows at every step, and has no oneDNN), so consecutive steps with about the same number of sequences run there as one
*block*, by the function for batches, which passes its states to the next. A sequence may end inside a block if another
call would cost more than the padding; :func:`maskgrad.semantics.recurrence.run_layer` keeps its state.

A sequence without steps keeps its initial state as its final one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.jagged.rows import Call, from_padded, is_jagged
from maskgrad.semantics.recurrence import SIGNATURE, Steps, in_layers, reversing, run_layer, taken
from maskgrad.semantics.stored.entries import StoredEntries, is_masked

__all__ = ["recurrence", "schedule"]

#: Overhead of a call, in multiplications: below it, padding is cheaper than another block. Measured on
#: one thread of a CPU; a factor of two to either side changes little.
PER_CALL = 2**22


class Block(NamedTuple):
    """Consecutive steps that are run as one batch.

    Attributes:
        steps: number of steps.
        sequences: number of sequences, the longest ones.
        lengths: length of each of them in this block, (sequences,); None if all reach its end.
    """

    steps: int
    sequences: int
    lengths: Tensor | None


class Schedule(NamedTuple):
    """The order in which rows are run.

    Attributes:
        order: the sequences by decreasing length, (B,).
        rank: the position of each sequence in this order, (B,).
        begun: number of sequences with a step.
        batch_sizes: number of sequences with each step, (longest length,), on the CPU, as in packed sequences.
        blocks: groups of consecutive steps.
        places: position of each row in the concatenated blocks, (n,).
        size: number of positions, with padding.
    """

    order: Tensor
    rank: Tensor
    begun: int
    batch_sizes: Tensor
    blocks: list[Block]
    places: Tensor
    size: int


def recurrence(call: Call) -> Any:
    """``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``, used by the modules."""
    function, args = call.function, call.args
    if len(args) > 3 and isinstance(args[3], (list, tuple)):  # packed already
        return None
    given = call.bound(SIGNATURE)
    x, params = given["input"], given["params"]
    initial = list(given["hx"]) if function is torch.lstm else [given["hx"]]
    if not is_jagged(x) or any(map(is_masked, (*initial, *params))):
        return None
    if x.pattern.at != ((0, 1) if given["batch_first"] else (1, 0)) or x.values.ndim != 2:
        return None
    pattern = x.pattern
    fits = all(state.ndim == 3 and state.shape[1] == pattern.frame.shape[0] for state in initial)
    if not fits or not can_read(x.values, *pattern.tensors()) or not x.values.shape[0]:
        output, *final = call.on_padded()
        rows = from_padded(output.values, pattern) if isinstance(output, Entries) else output
        return (rows, *final)
    rows, states = _run(function, given, x.values, pattern, initial)
    return (StoredEntries(rows, pattern), *map(as_entries, states))


def _run(
    function: Callable[..., Any],
    given: dict[str, Any],
    values: Tensor,
    pattern: JaggedPattern,
    initial: list[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The output (n, H) and the final states (layers * directions, B, H) of rows (n, F)."""
    weights = sum(weight.numel() for weight in given["params"]) // given["num_layers"]
    padding = 0 if values.is_cuda else PER_CALL // max(weights, 1)
    found = pattern.remembered(("schedule", padding), lambda: schedule(pattern, padding))
    data = values.new_zeros(found.size, values.shape[1]).index_copy(0, found.places, values)
    ordered = [state.index_select(1, found.order) for state in initial]
    begin = [state[:, : found.begun] for state in ordered]
    output, final = (_packed if values.is_cuda else _layers)(function, given, data, found, begin)
    if found.begun < len(found.order):
        final = [torch.cat([f, s[:, found.begun :]], 1) for f, s in zip(final, ordered, strict=True)]
    return output.index_select(0, found.places), [state.index_select(1, found.rank) for state in final]


def schedule(pattern: JaggedPattern, padding: int) -> Schedule:
    """Blocks, merged if that adds at most ``padding`` empty positions. Reads the lengths."""
    lengths, order = pattern.lengths().sort(descending=True, stable=True)
    rank = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
    counts = torch.bincount(lengths.cpu(), minlength=1)
    batch_sizes = counts.flip(0).cumsum(0).flip(0)[1:]  # sequences of length 1 or more have step 0
    blocks: list[Block] = []
    starts: list[int] = []
    first, size = 0, 0
    for steps, sequences in _together(batch_sizes.tolist(), padding):
        inside = (lengths[:sequences] - first).clamp(max=steps)
        is_full = int(batch_sizes[first + steps - 1]) == sequences
        blocks.append(Block(steps, sequences, None if is_full else inside))
        starts += [size + step * sequences for step in range(steps)]
        first, size = first + steps, size + steps * sequences
    start = torch.tensor(starts, dtype=torch.int64, device=order.device)
    places = start[pattern.positions()] + rank[pattern.sequences()]
    return Schedule(order, rank, int(batch_sizes[0]), batch_sizes, blocks, places, size)


def _together(batch_sizes: Sequence[int], padding: int) -> list[tuple[int, int]]:
    """Number of steps and of sequences of each block: neighbours are merged while few positions are empty."""
    blocks = _first_blocks(batch_sizes, padding // 8)  # to limit the number of candidates
    empty = [steps * (before - size) for (_, before), (steps, size) in itertools.pairwise(blocks)]
    while empty and min(empty) <= padding:
        at = empty.index(min(empty))
        blocks[at : at + 2] = [(blocks[at][0] + blocks[at + 1][0], blocks[at][1])]
        empty = [steps * (before - size) for (_, before), (steps, size) in itertools.pairwise(blocks)]
    return blocks


def _first_blocks(batch_sizes: Sequence[int], padding: int) -> list[tuple[int, int]]:
    """Blocks from the first step on, each as long as possible with at most ``padding`` empty positions."""
    blocks: list[tuple[int, int]] = []
    steps, most, empty = 0, 0, 0
    for size, same in itertools.groupby(batch_sizes):
        more = len(list(same))
        empty += (most - size) * more
        if steps and empty > padding:
            blocks.append((steps, most))
            steps = 0
        if not steps:
            most, empty = size, 0
        steps += more
    return [*blocks, (steps, most)]


def _packed(
    function: Callable[..., Any], given: dict[str, Any], data: Tensor, found: Schedule, initial: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    names = "params", "has_biases", "num_layers", "dropout", "train", "bidirectional"
    hx = tuple(initial) if len(initial) == 2 else initial[0]
    output, *final = function(data, found.batch_sizes, hx, *(given[name] for name in names))
    return output, final


def _layers(
    function: Callable[..., Any], given: dict[str, Any], data: Tensor, found: Schedule, initial: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    sizes = [block.steps * block.sequences for block in found.blocks]

    def run(
        x: Tensor, states: list[Tensor], weights: list[Tensor], is_reversed: bool
    ) -> tuple[Tensor, list[Tensor]]:
        walk = _backwards if is_reversed else _forwards
        return walk(function, x.split(sizes), found.blocks, states, weights, given["has_biases"])

    return in_layers(given, data, initial, run)


def _forwards(
    function: Callable[..., Any],
    parts: Sequence[Tensor],
    blocks: list[Block],
    states: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
) -> tuple[Tensor, list[Tensor]]:
    """From the first step on: sequences leave with their state at their end."""
    outputs: list[Tensor] = []
    ended: list[list[Tensor]] = []
    for part, block in zip(parts, blocks, strict=True):
        if block.sequences < states[0].shape[1]:
            ended.append([state[:, block.sequences :] for state in states])
            states = [state[:, : block.sequences] for state in states]
        x = part.reshape(block.steps, block.sequences, -1)
        output, states = _block(function, x, block, states, weights, has_biases)
        outputs.append(output.flatten(0, 1))
    ended.append(states)
    return torch.cat(outputs), [torch.cat(final[::-1], 1) for final in zip(*ended, strict=True)]


def _backwards(
    function: Callable[..., Any],
    parts: Sequence[Tensor],
    blocks: list[Block],
    initial: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
) -> tuple[Tensor, list[Tensor]]:
    """From the last step back: sequences join with their initial state at their end."""
    outputs: list[Tensor] = []
    states = [state[:, :0] for state in initial]
    for part, block in zip(reversed(parts), reversed(blocks), strict=True):
        here = states[0].shape[1]
        joining = [state[:, here : block.sequences] for state in initial]
        states = [torch.cat(both, 1) for both in zip(states, joining, strict=True)]
        x = _reversed(part.reshape(block.steps, block.sequences, -1), block)
        output, states = _block(function, x, block, states, weights, has_biases)
        outputs.append(_reversed(output, block).flatten(0, 1))
    return torch.cat(outputs[::-1]), states


def _steps(block: Block) -> Steps:
    assert block.lengths is not None
    positions = torch.arange(block.steps, device=block.lengths.device)
    present = positions.unsqueeze(1) < block.lengths
    return Steps(block.lengths, block.lengths > 0, present.unsqueeze(-1))


def _reversed(x: Tensor, block: Block) -> Tensor:
    """The steps of each sequence in opposite order, within its length."""
    return x.flip(0) if block.lengths is None else taken(x, reversing(_steps(block)))


def _block(
    function: Callable[..., Any],
    x: Tensor,
    block: Block,
    states: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction over the steps (T, N, F) of a block."""
    if block.lengths is not None:
        return run_layer(function, x, states, weights, has_biases, _steps(block))
    hx = tuple(states) if len(states) == 2 else states[0]
    output, *final = function(x, hx, weights, has_biases, 1, 0.0, False, False, False)
    return output, final
