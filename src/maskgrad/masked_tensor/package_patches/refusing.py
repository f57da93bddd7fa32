"""Functions of other packages that would take a MaskedTensor for something else say so instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["has_masked", "refuse"]


def has_masked(given: object) -> bool:
    """Whether there is a MaskedTensor in nested lists, tuples and dicts."""
    if isinstance(given, (list, tuple)):
        return any(map(has_masked, given))
    if isinstance(given, dict):
        return any(map(has_masked, given.values()))
    return isinstance(given, MaskedTensor)


def refuse(path: str, reason: str, remedy: str, only_with: str = "") -> Callable[[], None]:
    """An ``install`` of the table: the function at ``path`` raises if it is given a MaskedTensor.

    With ``only_with``: and if that keyword is given, and not None.
    """

    def install() -> None:
        def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                asked = not only_with or kwargs.get(only_with) is not None
                if asked and (has_masked(args) or has_masked(kwargs)):
                    raise UnsupportedOperationError(path, reason, remedy)
                return original(*args, **kwargs)

            return function

        exchange(path, guarded)

    return install
