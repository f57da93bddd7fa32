"""ParameterList and ParameterDict refuse MaskedTensors: what is no tensor they keep as an attribute nobody trains."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from maskgrad.masked_tensor.memory import AS_PARAMETER
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["install"]


def install() -> None:
    """Look at what is put into the containers; all their methods put it there by ``container[key] = value``."""
    for container in (nn.ParameterList, nn.ParameterDict):
        original = container.__setitem__

        @functools.wraps(original)
        def assign(self: Any, key: Any, value: Any, original: Any = original) -> Any:
            if isinstance(value, MaskedTensor):
                raise TypeError(AS_PARAMETER)
            return original(self, key, value)

        container.__setitem__ = assign  # type: ignore[method-assign]
