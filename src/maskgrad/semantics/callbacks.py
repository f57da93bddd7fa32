"""Functions and variables of the user that a rule meets: there are MaskedTensors, of which rules know nothing.

``masked_tensor.dispatch`` provides the two conversions when it is imported; nothing can be masked before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_conversions: list[Callable[[Any], Any]] = []


def provide(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> None:
    """Say how entries become MaskedTensors and how they come back."""
    _conversions[:] = [wrap, unwrap]


def as_entries(operand: Any) -> Any:
    """What a user holds, as a rule wants it: a MaskedTensor as entries, anything else as it is."""
    return _conversions[1](operand)


def call_back(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function of the user with MaskedTensors for entries; its result as entries again."""
    wrap, _ = _conversions
    return as_entries(function(*(wrap(operand) for operand in operands)))
