"""Totals of losses, and their denominators: of this process, or summed over several."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor

_ADDERS: list[Callable[..., tuple[Tensor, ...]]] = []


def added_up(*parts: Tensor) -> tuple[Tensor, ...]:
    """0-dim totals and counts, summed over all participants."""
    return _ADDERS[-1](*parts) if _ADDERS else parts


@contextlib.contextmanager
def adding_up(adder: Callable[..., tuple[Tensor, ...]]) -> Iterator[None]:
    """Let ``adder`` sum the totals of all losses in this context."""
    _ADDERS.append(adder)
    try:
        yield
    finally:
        _ADDERS.remove(adder)
