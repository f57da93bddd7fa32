"""What hangs on parameters when modules save and load: rows that wait for steps, entries that are not trained."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["after_assigning", "before_saving", "install_loading", "install_saving"]

_COMPLETE: list[Callable[[Tensor], None]] = []
_HAND_OVER: list[Callable[[Tensor, Tensor], None]] = []


def before_saving(complete: Callable[[Tensor], None]) -> None:
    """Call ``complete`` with each parameter that a module is about to put into its state."""
    _COMPLETE.append(complete)


def after_assigning(hand_over: Callable[[Tensor, Tensor], None]) -> None:
    """Call ``hand_over`` with a parameter and the one that ``load_state_dict(assign=True)`` puts in its place."""
    _HAND_OVER.append(hand_over)


def install_saving() -> None:
    """PyTorch has hooks for one module only, and nobody knows which module has a parameter."""
    original = nn.Module._save_to_state_dict

    @functools.wraps(original)
    def save(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        for param in self._parameters.values():
            if param is not None:
                for complete in _COMPLETE:
                    complete(param)
        original(self, *args, **kwargs)

    nn.Module._save_to_state_dict = save  # type: ignore[method-assign]


def install_loading() -> None:
    """What is assigned is another tensor, on which nothing hangs yet."""
    original = nn.Module._load_from_state_dict

    @functools.wraps(original)
    def load(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        before = dict(self._parameters)
        original(self, *args, **kwargs)
        for name, old in before.items():
            new = self._parameters.get(name)
            if old is not None and new is not None and new is not old:
                for hand_over in _HAND_OVER:
                    hand_over(old, new)

    nn.Module._load_from_state_dict = load  # type: ignore[method-assign]
