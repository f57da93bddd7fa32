"""What a module saves is complete: parameters whose rows wait for their steps have had them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["before_saving", "install"]

_COMPLETE: list[Callable[[Tensor], None]] = []


def before_saving(complete: Callable[[Tensor], None]) -> None:
    """Call ``complete`` with each parameter that a module is about to put into its state."""
    _COMPLETE.append(complete)


def install() -> None:
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
