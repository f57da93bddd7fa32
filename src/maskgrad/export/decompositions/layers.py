"""Pooling by windows, convolutions and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BODIES", "lstm_layer"]


def avg_pool(rank: int) -> Any:
    """The exporter ignores ``divisor_override``: multiply the mean over padded windows to get the sum."""
    pool: Any = F.avg_pool2d if rank == 2 else F.avg_pool3d

    def body(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None:
            return NotImplemented
        kernel = _for_each(kernel_size, rank)
        step = _for_each(stride, rank) if stride else kernel
        pad = _for_each(padding, rank)
        sizes = x.shape[-rank:]
        padded = F.pad(
            x,
            [
                side
                for size, k, s, p in reversed(list(zip(sizes, kernel, step, pad, strict=True)))
                for side in (p, p + _missing(size, k, s, p, ceil_mode))
            ],
        )
        return pool(padded, kernel, step) * (math.prod(kernel) / divisor_override)

    return body


def _for_each(given: Sequence[int], rank: int) -> list[int]:
    return list(given) * rank if len(given) == 1 else list(given)


def _missing(size: Any, kernel: int, step: int, pad: int, ceil_mode: bool) -> Any:
    """Return the overhang of the last window of ``ceil_mode``; windows that begin in the padding are dropped."""
    if not ceil_mode:
        return 0
    windows = -(-(size + 2 * pad - kernel) // step) + 1
    if (windows - 1) * step >= size + pad:
        windows -= 1
    return max((windows - 1) * step + kernel - size - 2 * pad, 0)


def _windows(size: Any, number: int) -> list[tuple[int, int]]:
    """Return begin and end of the windows of adaptive pooling."""
    return [(at * size // number, -(-(at + 1) * size // number)) for at in range(number)]


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """The mean of each window."""
    if not all(isinstance(size, int) for size in x.shape[-3:]):
        return NotImplemented
    for dim, number in zip((-3, -2, -1), output_size, strict=True):
        means = [x.narrow(dim, a, b - a).mean(dim) for a, b in _windows(x.shape[dim], number)]
        x = torch.stack(means, dim)
    return x


def adaptive_max_pool(rank: int) -> Any:
    """The largest entry of each window, and its row-major index."""

    def body(x: Tensor, output_size: Sequence[int]) -> Any:
        sizes = x.shape[-rank:]
        if not all(isinstance(size, int) for size in sizes):
            return NotImplemented
        places = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
        for dim, (size, number) in enumerate(zip(sizes, output_size, strict=True), -rank):
            chosen = _window_places(size, number, x.device)
            x, places = x.index_select(dim, chosen), places.index_select(dim, chosen)
        entries, at = _by_window(x, output_size, rank).max(-1)
        places = _by_window(places, output_size, rank)
        return entries, places.expand(*at.shape, -1).gather(-1, at[..., None]).squeeze(-1)

    return body


def _window_places(size: int, number: int, device: torch.device) -> Tensor:
    """Return the indices of the entries of each window; shorter windows repeat their last."""
    longest = max([end - begin for begin, end in _windows(size, number)] + [1])
    at = torch.arange(number, device=device)
    begin = torch.div(at * size, number, rounding_mode="floor")
    last = torch.div((at + 1) * size + number - 1, number, rounding_mode="floor") - 1
    inside = begin[:, None] + torch.arange(longest, device=device)
    return torch.minimum(inside, last[:, None]).flatten()


def _by_window(x: Tensor, output_size: Sequence[int], rank: int) -> Tensor:
    """The windows of each dimension concatenated, as (…, *output_size, entries)."""
    batch = x.shape[: x.ndim - rank]
    split = [
        part for size, n in zip(x.shape[-rank:], output_size, strict=True) for part in (n, size // max(n, 1))
    ]
    first = len(batch)
    order = [*range(first), *range(first, first + 2 * rank, 2), *range(first + 1, first + 2 * rank, 2)]
    return x.reshape(*batch, *split).permute(order).flatten(-rank)


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
    """ONNX's LSTM has no projection of the states; the number of steps in the file is that of the example."""
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


BODIES = {
    "avg_pool2d": avg_pool(2),
    "avg_pool3d": avg_pool(3),
    "_adaptive_avg_pool3d adaptive_avg_pool3d": adaptive_avg_pool3d,
    "adaptive_max_pool1d": adaptive_max_pool(1),
    "adaptive_max_pool2d": adaptive_max_pool(2),
    "adaptive_max_pool3d": adaptive_max_pool(3),
    "lstm.input": projected_lstm,
}
