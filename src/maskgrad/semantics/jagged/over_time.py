"""Convolutions and recurrent layers over time: on the padded form, and the rows of each sequence kept.

Running blocks of recurrent steps, the longest sequences first, was as fast as this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.mode import can_read
from maskgrad.semantics.convolutions import FORWARD, TRANSPOSED, of_dim, paddings
from maskgrad.semantics.jagged.rows import Call, from_padded, is_jagged, of_lengths
from maskgrad.semantics.recurrence import SIGNATURE
from maskgrad.semantics.stored.entries import is_masked

__all__ = ["RULES"]


def convolution(names: str, transposed: bool) -> Callable[[Call], Any]:
    """The rule for one direction, of (B, C, T) with ``specified="sequence"``; ``"any"`` may fill holes."""

    def rule(call: Call) -> Any:
        given, found = call.bound(names), call.on_padded()
        x, weight = given["input"], given["weight"]
        plain = not is_masked(weight) and not is_masked(given.get("bias"))
        if given.get("specified", "any") != "sequence" or not plain or not is_jagged(x):
            return found
        if x.pattern.at != (0, 2) or x.values.ndim != 2:
            return found
        if not transposed and _keeps_lengths(weight.shape[-1], given):
            return from_padded(found.values, x.pattern)
        if not can_read(x.values, *x.pattern.tensors()):  # the number of rows depends on the lengths
            return found
        sizes = found.mask.shape[0], found.mask.shape[-1]
        return from_padded(found.values, of_lengths(found.mask.any(1).sum(-1), sizes, x.pattern.at))

    return rule


def _keeps_lengths(taps: int, geometry: dict[str, Any]) -> bool:
    around = sum(paddings(taps, 0, geometry))
    span = of_dim(geometry.get("dilation", 1), 0) * (taps - 1)
    return of_dim(geometry.get("stride", 1), 0) == 1 and around == span


def recurrence(call: Call) -> Any:
    """``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``, used by the modules."""
    output, *final = call.on_padded()
    given = call.bound(SIGNATURE)
    x, hx = given["input"], given["hx"]
    initial = hx if call.function is torch.lstm else [hx]
    if is_jagged(x) and not any(map(is_masked, initial)):
        output = from_padded(output.values, x.pattern)
    return (output, *final)


RULES = {
    "nn.functional.conv1d": convolution(FORWARD, transposed=False),
    "nn.functional.conv_transpose1d": convolution(TRANSPOSED, transposed=True),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrence),
}
