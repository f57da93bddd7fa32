"""Totals of losses, and the numbers they are divided by: of this process, or of several that someone adds up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor

_ADDERS: list[Callable[..., tuple[Tensor, ...]]] = []


def adds_up() -> bool:
    """Whether totals are more than those of this process."""
    return bool(_ADDERS)


def added_up(*parts: Tensor) -> tuple[Tensor, ...]:
    """0-dim totals and counts, added up over whatever takes part."""
    return _ADDERS[-1](*parts) if _ADDERS else parts


@contextlib.contextmanager
def adding_up(adder: Callable[..., tuple[Tensor, ...]]) -> Iterator[None]:
    """Let ``adder`` add up the totals of all losses in this context."""
    _ADDERS.append(adder)
    try:
        yield
    finally:
        _ADDERS.remove(adder)
