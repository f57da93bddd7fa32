"""Recurrent layers on packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["recurrence"]


def recurrence(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``."""
    return fallback
