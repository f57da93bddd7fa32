"""Backward hooks of the old kind, ``Module.register_backward_hook``, refuse MaskedTensors in words.

Such a hook sits on the last node of a module's result, which ``torch.nn.Module`` looks for by taking first parts until
it meets a tensor. A MaskedTensor is none: it is taken apart entry by entry, down to an index of a 0-dim tensor, an
error that names neither the hook nor the module. So the result is looked at before torch does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["install"]

#: the name of our forward hook among those of a module, where torch has numbers
KEY = "maskgrad: legacy backward hooks"


def _refuse_masked(module: nn.Module, _: Any, result: Any) -> None:
    """Once, right before torch looks at the result."""
    module._forward_hooks.pop(KEY, None)  # type: ignore[call-overload]
    if _is_found_masked(result):
        raise UnsupportedOperationError(
            f"{type(module).__name__}.register_backward_hook",
            "a hook of this kind sits on a plain tensor, and this module returned a MaskedTensor; use "
            "register_full_backward_hook, which sees MaskedTensors and may return them",
        )


def _is_found_masked(result: Any) -> bool:
    """Whether torch would meet a MaskedTensor where it looks for a tensor."""
    found = result
    while not isinstance(found, Tensor):
        if isinstance(found, MaskedTensor):
            return True
        if isinstance(found, dict):
            parts = found.values()
            first = next((part for part in parts if isinstance(part, Tensor)), None)
            if first is None:
                return any(isinstance(x, MaskedTensor) for x in tree_leaves(found, _is_masked))
            found = first
        elif isinstance(found, (tuple, list)) and found:
            found = found[0]
        else:
            return False  # what torch cannot look into either
    return False


def _is_masked(x: object) -> bool:
    return isinstance(x, MaskedTensor)


def install() -> None:
    """Look at the results of modules with such hooks, wherever these were registered."""
    original = nn.Module._get_backward_hooks

    def get_backward_hooks(self: nn.Module) -> Any:
        full, old = original(self)  # type: ignore[no-untyped-call]
        if old:  # after all other forward hooks, which may exchange the result
            self._forward_hooks[KEY] = _refuse_masked  # type: ignore[index]
        return full, old

    get_backward_hooks.__wrapped__ = original  # type: ignore[attr-defined]
    nn.Module._get_backward_hooks = get_backward_hooks  # type: ignore[method-assign]
