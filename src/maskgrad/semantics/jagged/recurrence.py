"""Recurrent layers on sequences of different lengths: computed on the padded form, and the rows of its output kept.

Running blocks of steps, the longest sequences first, was as fast as this.
"""

from __future__ import annotations

from typing import Any

import torch

from maskgrad.semantics.jagged.rows import Call, from_padded, is_jagged
from maskgrad.semantics.recurrence import SIGNATURE
from maskgrad.semantics.stored.entries import is_masked

__all__ = ["recurrence"]


def recurrence(call: Call) -> Any:
    """``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``, used by the modules."""
    output, *final = call.on_padded()
    given = call.bound(SIGNATURE)
    x, hx = given["input"], given["hx"]
    initial = hx if call.function is torch.lstm else [hx]
    if is_jagged(x) and not any(map(is_masked, initial)):
        output = from_padded(output.values, x.pattern)
    return (output, *final)
