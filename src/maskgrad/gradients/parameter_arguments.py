"""Parameters as arguments: one, or several in any iterable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["listed_parameters"]


def listed_parameters(given: Any) -> list[Tensor | MaskedTensor]:
    """Return parameters as a list; TypeError for what is none."""
    if isinstance(given, (Tensor, MaskedTensor)):
        return [given]
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for one in listed:
        if not isinstance(one, (Tensor, MaskedTensor)):
            found = (
                type(one).__name__ if one is given else f"{type(one).__name__} in a {type(given).__name__}"
            )
            raise TypeError(f"parameters must be tensors, found {found}; write model.parameters()")
    return listed
