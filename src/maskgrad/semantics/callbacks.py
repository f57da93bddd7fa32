"""Functions of the user that a rule has to call: they work on MaskedTensors, which rules know nothing of.

``masked_tensor.dispatch`` provides the two conversions when it is imported; nothing can be masked before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_back", "provide"]

_conversions: list[Callable[[Any], Any]] = []


def provide(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> None:
    """Say how entries become MaskedTensors and how they come back."""
    _conversions[:] = [wrap, unwrap]


def call_back(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function of the user with MaskedTensors for entries; its result as entries again."""
    wrap, unwrap = _conversions
    return unwrap(function(*(wrap(operand) for operand in operands)))
