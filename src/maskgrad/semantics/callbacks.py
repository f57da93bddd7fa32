"""User functions and variables inside a rule: they use MaskedTensors, which rules do not know.

``masked_tensor.dispatch`` registers the two conversions when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_conversions: list[Callable[[Any], Any]] = []


def provide(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> None:
    """Register the conversions of entries to MaskedTensors and back."""
    _conversions[:] = [wrap, unwrap]


def as_entries(operand: Any) -> Any:
    """Convert a user's MaskedTensor to entries; return anything else unchanged."""
    return _conversions[1](operand)


def call_back(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a user function with MaskedTensors in place of entries; return its result as entries."""
    wrap, _ = _conversions
    return as_entries(function(*(wrap(operand) for operand in operands)))
